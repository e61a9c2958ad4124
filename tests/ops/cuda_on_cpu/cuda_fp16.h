#pragma once

#include <c10/util/Half.h>

#include "cuda_runtime.h"

using __half = c10::Half;
inline float __half2float(__half x) { return x; }
inline __half __float2half_rn(float x) { return x; }
inline __half __ushort_as_half(unsigned short x) { return bits<__half>(x); }
