// The instruction set that every processor of the platform supports.
#define MMATTN_LANES 4
#include "kernels.h"

namespace mmattn {
const Kernels kernels_default{
    "default",      local_attention,         local_attention_backward, global_attention,
    grid_attention, grid_attention_backward, strided_attention,        strided_attention_backward};
}
