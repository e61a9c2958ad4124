// The kernels, for vectors of MMATTN_LANES floats, in the instruction set of the file that includes this one. Nothing
// in it may call an inline function of another header, nor have linkage.
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

}  // namespace
}  // namespace mmattn
