#include "amx.h"

#include <ATen/Context.h>
#include <torch/version.h>

// The interface of BRGEMM changed before torch 2.10.
#if defined(__x86_64__) && (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 10)
#define MMATTN_BRGEMM
#include <ATen/native/CPUBlas.h>
#endif

namespace mmattn {

#ifdef MMATTN_BRGEMM
bool has_amx() { return at::native::cpublas::could_pack(at::kBFloat16); }

bool multiplies_panels() { return at::globalContext().userEnabledMkldnn(); }

void multiply_panel(int64_t rows, int64_t count, const void* a, int64_t pitch, const void* panel, float* to) {
  at::native::cpublas::brgemm(rows, 16, count, pitch, 16, 16, false, static_cast<const at::BFloat16*>(a),
                              static_cast<const at::BFloat16*>(panel), to, true);
}

void release_amx() { at::native::cpublas::brgemm_release(true); }
#else
bool has_amx() { return false; }
bool multiplies_panels() { return false; }
void multiply_panel(int64_t, int64_t, const void*, int64_t, const void*, float*) {}
void release_amx() {}
#endif

}  // namespace mmattn
