// Which vector instructions the kernels use, found at run time.
//
// A kernel with vectorised loops is compiled once for each instruction set, in files that end in _portable.cpp,
// _avx2.cpp and _avx512.cpp (CMakeLists.txt gives the last two their flags). Such a file must only instantiate
// templates of its own vector width and always-inline functions: anything else that two of them define might be
// merged by the linker into the one that this machine cannot run.
#pragma once

namespace ddtree::cpu {

enum class InstructionSet { portable = 0, avx2 = 1, avx512 = 2 };

// The best that this machine has, or what use_instruction_set() last chose.
InstructionSet instruction_set();

// Chooses one, for tests; false (and no change) if this machine does not have it.
bool use_instruction_set(InstructionSet chosen);

}  // namespace ddtree::cpu
