// The instruction set that every processor of the platform supports.
#define MMATTN_LANES 4
#include "kernels.h"

namespace mmattn {
const Kernels kernels_default = kernels_of("default");
}
