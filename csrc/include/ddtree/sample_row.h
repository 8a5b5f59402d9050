// A row of the target as masses: what the walk adds up and draws from.
//
// A row of probabilities is taken as it is. Of a row of logits x the tokens that top-k and top-p leave get the
// mass exp((x - max) / temperature), the others 0. A mass divided by the row's norm is a probability.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "ddtree/lanes.h"
#include "ddtree/sample_select.h"

namespace ddtree {

// Of several the first is reported.
enum class SampleFault : std::int32_t {
    none = 0,
    not_a_number = 1,
    plus_infinity = 2,
    negative = 3,
    no_mass = 4,
    bad_token = 5,  // a node that the walk tries has no token of the vocabulary
    bad_slot = 6,   // a node on the path has a retrieve_index outside `predicts`
    topology = 7,
};

// The worse of two, `none` being the best.
struct WorseFault {
    DDTREE_HD DDTREE_INLINE SampleFault operator()(SampleFault a, SampleFault b) const {
        if (a == SampleFault::none || b == SampleFault::none) return a == SampleFault::none ? b : a;
        return a < b ? a : b;
    }
};

// What a row of logits is sampled by.
struct SamplingRule {
    float temperature;   // below 1e-5: all mass on the likeliest token
    std::int64_t top_k;  // 0: off
    double top_p;        // 1: off

    DDTREE_HD DDTREE_INLINE bool greedy() const { return temperature < 1e-5f; }
    // The distribution is softmax(logits) itself.
    DDTREE_HD DDTREE_INLINE bool plain() const { return temperature == 1.0f && top_k == 0 && top_p >= 1.0; }
};

// The row's masses stand in scratch.values, their chunk masses in scratch.chunk_masses.
struct RowMasses {
    SampleFault fault;
    double norm;
};

// ---- reading a row ----

struct RowLook {
    float maximum;
    SampleFault fault;
};

namespace detail {

DDTREE_HD DDTREE_INLINE float lowest_of(const float*) { return -std::numeric_limits<float>::infinity(); }
DDTREE_HD DDTREE_INLINE BFloat16 lowest_of(const BFloat16*) { return {0xff80}; }
DDTREE_HD DDTREE_INLINE Float16 lowest_of(const Float16*) { return {0xfc00}; }

// What is wrong with values some of which are.
template <class Block>
DDTREE_HD SampleFault fault_among(const float* values, std::int64_t count) {
    SampleFault fault = SampleFault::none;
    for (std::int64_t i = 0; i < count; ++i) {
        const float value = values[i];
        const SampleFault found = value != value                                      ? SampleFault::not_a_number
                                  : value == std::numeric_limits<float>::infinity() ? SampleFault::plus_infinity
                                  : value < 0.0f                                    ? SampleFault::negative
                                                                                    : SampleFault::none;
        fault = WorseFault{}(fault, found);
    }
    return fault;
}

struct BothLooks {
    DDTREE_HD DDTREE_INLINE RowLook operator()(const RowLook& a, const RowLook& b) const {
        return {Maximum{}(a.maximum, b.maximum), WorseFault{}(a.fault, b.fault)};
    }
};

}  // namespace detail

// Copies a row of logits into scratch.values, padded with -inf, and its lane maxima beside it; finds its maximum
// and whether it can be sampled.
template <class Block, class T>
DDTREE_HD RowLook read_logits(const Block& block, const T* row, std::int64_t size, const RowScratch& scratch) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    using Int = typename Lanes::Int;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    RowLook look = {-kInfinity, SampleFault::none};
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        Int wrong = {};
        const std::int64_t count = Minimum{}(size - first, std::int64_t{kChunk});
        const float best =
            Lanes::copy(row + first, count, detail::lowest_of(row), scratch.values + first,
                        scratch.lane_maxima + chunk * kLanes, wrong,
                        [&](Float x) __attribute__((always_inline)) { return x < kInfinity ? Int{} : Int{} - 1; });
        SampleFault fault = SampleFault::none;
        Lanes::meet(kSiteLogitsCopied);
        if (Lanes::any(wrong)) {
            fault = detail::fault_among<Block>(scratch.values + first, groups * kLanes);
            if (fault == SampleFault::negative) fault = SampleFault::none;
        }
        look = detail::BothLooks{}(look, {best, fault});
    });
    look = block.reduce(look, detail::BothLooks{}, kSiteRowLook);
    if (look.fault == SampleFault::none && look.maximum == -kInfinity) look.fault = SampleFault::no_mass;
    return look;
}

// ---- masses ----

// The sum of all chunk masses. The caller has written those of its own chunks.
template <class Block>
DDTREE_HD double add_chunk_masses(const Block& block, std::int64_t size, const RowScratch& scratch) {
    block.sync(kSiteChunkMasses);
    return sum_of_chunks(scratch.chunk_masses, chunks_of(size));
}

// Turns scratch.values into the masses that mass(i, values) makes of them, a vector at a time, i being the first
// element's token; returns their sum.
template <class Block, class Mass>
DDTREE_HD DDTREE_INLINE double make_masses(const Block& block, std::int64_t size, const RowScratch& scratch,
                                           Mass mass) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        const float made_here = Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
            const Float made = mass(first + i, load<typename Lanes::Vec>(scratch.values + first + i));
            write_vector(scratch.values + first + i, made);
            return made;
        });
        Lanes::put(scratch.chunk_masses + chunk, made_here);
    });
    return add_chunk_masses(block, size, scratch);
}

// Masses of the tokens whose logit reaches `least`, at a temperature. What need not be done is left out: dividing by
// 1 and comparing with -inf change nothing.
template <class Block>
DDTREE_HD double exp_masses(const Block& block, std::int64_t size, float maximum, float temperature, float least,
                            const RowScratch& scratch) {
    using Float = typename LanesOf<Block>::Float;
    using Int = typename LanesOf<Block>::Int;
    const auto with = [&](auto divided, auto cut) {
        return make_masses(block, size, scratch, [&](std::int64_t, Float x) __attribute__((always_inline)) {
            Float distance = x - maximum;
            if constexpr (divided) distance = distance / temperature;
            const Float mass = exp_nonpositive<Float, Int>(distance);
            if constexpr (cut) return x >= least ? mass : Float{};
            return mass;
        });
    };
    constexpr std::true_type yes;
    constexpr std::false_type no;
    const bool is_cut = least > -std::numeric_limits<float>::infinity();
    if (temperature == 1.0f) return is_cut ? with(no, yes) : with(no, no);
    return is_cut ? with(yes, yes) : with(yes, no);
}

// Takes the mass from every token that is not in the cut; returns what is left.
template <class Block>
DDTREE_HD double keep_cut(const Block& block, std::int64_t size, const Cut& cut, const RowScratch& scratch) {
    using Float = typename LanesOf<Block>::Float;
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    if (cut.last_token == std::numeric_limits<std::int32_t>::max())
        return make_masses(block, size, scratch, [&](std::int64_t, Float mass) __attribute__((always_inline)) {
            return mass >= cut.least ? mass : Float{};
        });
    return make_masses(block, size, scratch, [&](std::int64_t i, Float mass) __attribute__((always_inline)) {
        const Float equal_kept = Lanes::numbers(i) <= cut.last_token ? mass : Float{};
        return mass > cut.least ? mass : mass == cut.least ? equal_kept : Float{};
    });
}

// The lowest token whose logit is the maximum.
template <class Block>
DDTREE_HD std::int64_t likeliest_token(const Block& block, std::int64_t size, float maximum,
                                       const RowScratch& scratch) {
    std::int64_t token = std::numeric_limits<std::int64_t>::max();
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t) {
        if (token < first) return;
        for (int lane = 0; lane < kLanes; ++lane) {
            if (scratch.lane_maxima[chunk * kLanes + lane] != maximum) continue;
            std::int64_t i = first + lane;
            while (scratch.values[i] != maximum) i += kLanes;
            token = Minimum{}(token, i);
        }
    });
    return block.reduce(token, Minimum{}, kSiteLikeliest);
}

template <class Block>
DDTREE_HD void one_hot(const Block& block, std::int64_t size, std::int64_t token, const RowScratch& scratch) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        Lanes::each(groups, [&](std::int64_t i, int) __attribute__((always_inline)) {
            write_vector(scratch.values + first + i, Float{});
        });
        const bool here = token / kChunk == chunk;
        Lanes::meet(kSiteOneHot);
        if (here) Lanes::put(scratch.values + token, 1.0f);
        Lanes::put(scratch.chunk_masses + chunk, here ? 1.0f : 0.0f);
    });
}

// The masses of the logits in scratch.values, whose look was taken, all workers together.
template <class Block>
DDTREE_HD RowMasses masses_of_look(const Block& block, std::int64_t size, const RowLook& look,
                                   const SamplingRule& rule, const RowScratch& scratch) {
    if (rule.greedy()) {
        one_hot(block, size, likeliest_token(block, size, look.maximum, scratch), scratch);
        return {SampleFault::none, add_chunk_masses(block, size, scratch)};
    }
    float least = -std::numeric_limits<float>::infinity();
    if (rule.top_k > 0 && rule.top_k < size) least = top_k_threshold(block, size, rule.top_k, scratch);
    double norm = exp_masses(block, size, look.maximum, rule.temperature, least, scratch);
    if (rule.top_p < 1.0) norm = keep_cut(block, size, nucleus(block, size, rule.top_p, norm, scratch), scratch);
    return {SampleFault::none, norm};
}

// A row of logits as masses, all workers together.
template <class Block, class T>
DDTREE_HD RowMasses masses_of_logits(const Block& block, const T* row, std::int64_t size, const SamplingRule& rule,
                                     const RowScratch& scratch) {
    const RowLook look = read_logits(block, row, size, scratch);
    if (look.fault != SampleFault::none) return {look.fault, 0.0};
    return masses_of_look(block, size, look, rule, scratch);
}

// A row of probabilities as masses, all workers together: the same numbers, and the norm 1.
template <class Block>
DDTREE_HD RowMasses masses_of_probs(const Block& block, const float* row, std::int64_t size,
                                    const RowScratch& scratch) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    using Int = typename Lanes::Int;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    SampleFault fault = SampleFault::none;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        Int wrong = {};
        const std::int64_t count = Minimum{}(size - first, std::int64_t{kChunk});
        Lanes::copy(row + first, count, 0.0f, scratch.values + first, nullptr, wrong,
                    [&](Float p) __attribute__((always_inline)) {
                        const Int sound = p < kInfinity ? Int{} : Int{} - 1;
                        return sound | (p < 0.0f ? Int{} - 1 : Int{});
                    });
        Lanes::meet(kSiteProbsCopied);
        const float mass = Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
            return load<typename Lanes::Vec>(scratch.values + first + i);
        });
        Lanes::put(scratch.chunk_masses + chunk, mass);
        if (Lanes::any(wrong))
            fault = WorseFault{}(fault, detail::fault_among<Block>(scratch.values + first, groups * kLanes));
    });
    fault = block.reduce(fault, WorseFault{}, kSiteProbsFault);
    const double total = sum_of_chunks(scratch.chunk_masses, chunks_of(size));  // the reduction synchronised
    if (fault == SampleFault::none && !(total > 0.0)) fault = SampleFault::no_mass;
    return {fault, 1.0};
}

}  // namespace ddtree
