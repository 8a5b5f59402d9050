#include "cpu/instruction_set.h"

#include <atomic>

namespace ddtree::cpu {

namespace {

InstructionSet best() {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return InstructionSet::avx512;
    if (__builtin_cpu_supports("avx2")) return InstructionSet::avx2;
#endif
    return InstructionSet::portable;
}

std::atomic<InstructionSet>& current() {
    static std::atomic<InstructionSet> chosen{best()};
    return chosen;
}

}  // namespace

InstructionSet instruction_set() { return current().load(std::memory_order_relaxed); }

bool use_instruction_set(InstructionSet chosen) {
    if (chosen > best()) return false;
    current().store(chosen, std::memory_order_relaxed);
    return true;
}

}  // namespace ddtree::cpu
