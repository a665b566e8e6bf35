#include "merger.h"

#define CELL uint16_t
#define BITS 16
#define FAR 63
#define WORK work_of_16_bits
#include "cells.h"
