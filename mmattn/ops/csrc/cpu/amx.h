// Products of bfloat16 by PyTorch's BRGEMM, which has kernels for AMX, the matrix unit of Intel's processors since
// Sapphire Rapids.
#pragma once

#include <cstdint>

namespace mmattn {

// Whether the processor has AMX, and torch uses it.
bool has_amx();

// Whether this build of torch multiplies panels, with AMX or, more slowly, with AVX-512.
bool multiplies_panels();

// Writes A (rows, count) times B (count, 16) to `to`, row-major. A row of A begins every `pitch` numbers. B is a panel:
// rows of 16 pairs of the numbers of two of its rows. torch compiles a kernel for each combination of sizes and keeps
// it.
void multiply_panel(int64_t rows, int64_t count, const void* a, int64_t pitch, const void* panel, float* to);

// Ends the use of AMX in a thread, after its last product.
void release_amx();

}  // namespace mmattn
