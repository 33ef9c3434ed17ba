// Warp shuffles, votes and reductions.
#pragma once

#include "kaas_twin/simt_warp.h"
