// A serial executor that counts how many elements of rows it reads.
#pragma once

#include <cstdint>

#include "ddtree/lanes.h"

inline std::int64_t elements_read = 0;

// Everything that algorithms read of a row, or of a copy of it, they read through these.
struct CountingLanes : ddtree::CpuLanes<4> {
    using Base = ddtree::CpuLanes<4>;

    template <class Use>
    static void each(std::int64_t groups, Use use) {
        elements_read += groups * ddtree::kLanes;
        Base::each(groups, use);
    }
    template <class Value>
    static float sum(std::int64_t groups, Value value) {
        elements_read += groups * ddtree::kLanes;
        return Base::sum(groups, value);
    }
    template <class Hold>
    static std::int32_t count(std::int64_t groups, Hold hold) {
        elements_read += groups * ddtree::kLanes;
        return Base::count(groups, hold);
    }
    template <class Hold, class Use>
    static std::int32_t select(std::int64_t groups, Hold hold, Use use) {
        elements_read += groups * ddtree::kLanes;
        return Base::select(groups, hold, use);
    }
    template <class T, class Flag>
    static float copy(const T* row, std::int64_t count, T fill, float* out, float* maxima, Int& flags, Flag flag) {
        elements_read += count;
        return Base::copy(row, count, fill, out, maxima, flags, flag);
    }
    static void move(const float* from, std::int64_t count, float* to) {
        elements_read += count;
        Base::move(from, count, to);
    }
    static float highest(const float* maxima) {
        elements_read += ddtree::kLanes;
        return Base::highest(maxima);
    }
};

struct CountingBlock : ddtree::SerialBlock {
    using Lanes = CountingLanes;
};
