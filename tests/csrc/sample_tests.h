// Samplers on threads against the serial executor.
#pragma once

#include <vector>

#include "harness.h"

inline std::vector<Test> sample_tests() { return {}; }
