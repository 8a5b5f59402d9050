// A row of the target as masses: what the walk adds up and draws from.
//
// A row of probabilities is taken as it is. Of a row of logits x the tokens that top-k and top-p leave get the
// mass exp((x - max) / temperature), the others 0. A mass divided by the row's norm is a probability.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "ddtree/arithmetic.h"
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

// Gives use(i, j, vector) the groups of a chunk, the last one filled up with `fill`.
template <class Lanes, class T, class Use>
DDTREE_HD DDTREE_INLINE void read_chunk(const T* row, std::int64_t size, std::int64_t first, std::int64_t groups,
                                        T fill, Use use) {
    using Vec = typename Lanes::Vec;
    const std::int64_t whole = first + groups * kLanes <= size ? groups : groups - 1;
    Lanes::each(whole, [&](std::int64_t i, int j) __attribute__((always_inline)) {
        use(first + i, j, load<Vec>(row + first + i));
    });
    if (whole == groups) return;
    const std::int64_t begin = first + whole * kLanes;
    T rest[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) rest[lane] = begin + lane < size ? row[begin + lane] : fill;
    Lanes::each(1, [&](std::int64_t i, int j) __attribute__((always_inline)) {
        use(begin + i, j, load<Vec>(rest + i));
    });
}

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
        Float lanes[Lanes::kVectors];
        for (Float& lane : lanes) lane = Float{} - kInfinity;
        Int wrong = {};
        detail::read_chunk<Lanes>(row, size, first, groups, detail::lowest_of(row),
                                  [&](std::int64_t i, int j, Float x) __attribute__((always_inline)) {
                                      write_vector(scratch.values + i, x);
                                      lanes[j] = lanes[j] > x ? lanes[j] : x;
                                      wrong |= x < kInfinity ? Int{} : Int{} - 1;
                                  });
        const float best = Lanes::keep_maxima(lanes, scratch.lane_maxima + chunk * kLanes);
        SampleFault fault = SampleFault::none;
        Lanes::meet();
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
    double total = 0.0;
    for (std::int64_t chunk = 0; chunk < chunks_of(size); ++chunk)
        total += static_cast<double>(scratch.chunk_masses[chunk]);
    return total;
}

// Turns scratch.values into the masses that `mass(i, value)` makes of them, a vector at a time; returns their sum.
template <class Block, class Mass>
DDTREE_HD DDTREE_INLINE double make_masses(const Block& block, std::int64_t size, const RowScratch& scratch,
                                           Mass mass) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        scratch.chunk_masses[chunk] = Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
            const Float made = mass(load<typename Lanes::Vec>(scratch.values + first + i));
            write_vector(scratch.values + first + i, made);
            return made;
        });
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
        return make_masses(block, size, scratch, [&](Float x) __attribute__((always_inline)) {
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
    if (cut.last_token != std::numeric_limits<std::int32_t>::max()) {  // equal ones: rare, one by one
        each_chunk(block, size, [&](std::int64_t, std::int64_t first, std::int64_t groups) {
            for (std::int64_t i = first; i < first + groups * kLanes; ++i)
                if (i > cut.last_token && scratch.values[i] == cut.least) scratch.values[i] = 0.0f;
        });
    }
    return make_masses(block, size, scratch, [&](Float mass) __attribute__((always_inline)) {
        return mass >= cut.least ? mass : Float{};
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
        Lanes::meet();
        if (here) scratch.values[token] = 1.0f;
        scratch.chunk_masses[chunk] = here ? 1.0f : 0.0f;
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
        Float lanes[Lanes::kVectors] = {};
        Int wrong = {};
        detail::read_chunk<Lanes>(row, size, first, groups, 0.0f,
                                  [&](std::int64_t i, int j, Float p) __attribute__((always_inline)) {
                                      write_vector(scratch.values + i, p);
                                      lanes[j] += p;
                                      wrong |= p < kInfinity ? Int{} : Int{} - 1;
                                      wrong |= p < 0.0f ? Int{} - 1 : Int{};
                                  });
        scratch.chunk_masses[chunk] = Lanes::pairwise(lanes);
        Lanes::meet();
        if (Lanes::any(wrong))
            fault = WorseFault{}(fault, detail::fault_among<Block>(scratch.values + first, groups * kLanes));
    });
    fault = block.reduce(fault, WorseFault{}, kSiteProbsFault);
    const double total = add_chunk_masses(block, size, scratch);
    if (fault == SampleFault::none && !(total > 0.0)) fault = SampleFault::no_mass;
    return {fault, 1.0};
}

}  // namespace ddtree
