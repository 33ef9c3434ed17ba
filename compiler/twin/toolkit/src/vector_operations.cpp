// The vector operations that images call in the library instead of compiling them: see vector_instances.h.
#define KAAS_TWIN_MAKES_INSTANCES
#include "kaas_twin/vector_instances.h"
