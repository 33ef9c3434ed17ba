// Short vectors and their make_* functions.
#pragma once

#include "kaas_twin/short_vectors.h"
