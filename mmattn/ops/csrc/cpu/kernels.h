// The kernels, for vectors of MMATTN_LANES floats, in the instruction set of the including file. Code in this file must
// not call inline functions of other headers, and must have internal linkage.
#include "capability.h"

namespace mmattn {
namespace {

#include "vector.inl"
#include "rows.inl"
#include "neighbourhood.inl"
#include "local_attention.inl"
#include "product.inl"
#include "lines.inl"
#include "global_attention.inl"
#include "grid_attention.inl"
#include "strided_attention.inl"

constexpr Kernels kernels_of(const char* name) {
  return {name,           local_attention,         local_attention_backward, global_attention,
          grid_attention, grid_attention_backward, strided_attention,        strided_attention_backward};
}

}  // namespace
}  // namespace mmattn
