#include "merger.h"

#define CELL uint8_t
#define BITS 8
#define FAR 15
#define WORK work_of_8_bits
#include "cells.h"
