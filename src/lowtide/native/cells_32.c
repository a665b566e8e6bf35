#include "merger.h"

#define CELL uint32_t
#define BITS 32
#define FAR 63
#define WORK work_of_32_bits
#include "cells.h"
