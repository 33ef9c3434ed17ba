// Cooperative groups.
#pragma once

#include "kaas_twin/simt_groups.h"
