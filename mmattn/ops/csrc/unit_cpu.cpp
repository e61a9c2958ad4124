// The operators on CPUs, in one translation unit: torch's headers take 4 of the 6 seconds that each file needs alone.
#include "cpu/amx.cpp"
#include "cpu/dynamic_conv.cpp"
#include "cpu/global_attention.cpp"
#include "cpu/grid_attention.cpp"
#include "cpu/local_attention.cpp"
#include "cpu/strided_attention.cpp"
