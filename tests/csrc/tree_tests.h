// Tree build and encoding on threads against the serial executor.
#pragma once

#include <vector>

#include "harness.h"

inline std::vector<Test> tree_tests() { return {}; }
