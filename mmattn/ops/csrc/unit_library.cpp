// What all operators share, in one translation unit, as in unit_cpu.cpp.
#include "direct_call.cpp"
#include "autograd.cpp"
#include "library.cpp"
#include "operator.cpp"
