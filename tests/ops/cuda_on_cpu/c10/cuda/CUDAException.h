#pragma once

#include <c10/util/Exception.h>

#include "../../cuda_runtime.h"

#define C10_CUDA_CHECK(call) TORCH_CHECK((call) == cudaSuccess, "cuda_on_cpu: a launch failed")
