// What a visited row shows: its likeliest tokens, its children, its entropy and how far the drafter was off.
//
// Probabilities "sampled" are those the walk decides with (temperature, top-k, top-p), to the last bit; "raw" ones
// are softmax(logits). Entropy and total variation are of the raw distribution.
#pragma once

#include <cmath>
#include <cstdint>

#include "ddtree/sample_row.h"

namespace ddtree {

// A token's probability, as it is shown.
struct ShownToken {
    std::int64_t token;
    double prob;  // sampled
    double raw_prob;
};

struct RowView {
    SampleFault fault;
    std::int32_t shown;      // tokens in `likeliest`
    double entropy;          // nats
    double total_variation;  // NaN where there is no row of the drafter
};

// One row to look at. The tokens to show are ids of the vocabulary.
template <class T, class D>
struct RowToObserve {
    const T* logits;        // [size]
    const D* draft_logits;  // [size], null: none
    std::int64_t size;
    float draft_temperature;
    SamplingRule rule;
    int most_shown;
    int children;
};

// Where worker 0 writes.
struct ObservedRow {
    RowView* view;          // [1]
    ShownToken* likeliest;  // [most_shown] likeliest first, among equals the lower id
    ShownToken* children;   // [children] tokens on entry, probabilities on return
};

// Memory the workers share for one row.
struct ObserveScratch {
    RowScratch row;    // the logits, then the sampled masses
    RowScratch raw;    // the raw masses, as `row` but for values and chunk masses of their own
    RowScratch draft;  // the drafter's masses, as `row` but for values of their own
    float* weighted;   // [chunks] of the raw masses times their logarithms, then of the variation

    DDTREE_HD static DDTREE_INLINE ObserveScratch over(Carver& carver, std::int64_t size) {
        ObserveScratch scratch;
        scratch.row = RowScratch::over(carver, size);
        scratch.raw = scratch.draft = scratch.row;
        scratch.raw.values = carver.take<float>(padded(size));
        scratch.raw.chunk_masses = carver.take<float>(chunks_of(size));
        scratch.draft.values = carver.take<float>(padded(size));
        scratch.weighted = carver.take<float>(chunks_of(size));
        return scratch;
    }
};

namespace detail {

// Worker 0: the `most` largest of the picked elements into `out`, largest first, equal ones by lower id.
DDTREE_HD DDTREE_INLINE std::int32_t put_in_order(const RowScratch& scratch, std::int64_t size, int most,
                                                  ShownToken* out) {
    std::int32_t shown = 0;
    for (std::int64_t chunk = 0; chunk < chunks_of(size); ++chunk) {
        const std::int64_t first = chunk * kChunk;
        for (std::int64_t i = first; i < first + scratch.counts[chunk]; ++i) {  // ids ascend: an equal one goes behind
            const double value = scratch.picked_values[i];
            if (shown == most && !(value > out[shown - 1].prob)) continue;
            std::int32_t place = shown < most ? shown++ : shown - 1;
            for (; place > 0 && value > out[place - 1].prob; --place) out[place] = out[place - 1];
            out[place] = {scratch.picked[i], value, 0.0};
        }
    }
    return shown;
}

struct RawMasses {
    double norm;
    double entropy;
};

// exp(x - max) of the logits in scratch.row into scratch.raw.
template <class Block>
DDTREE_HD RawMasses raw_masses(const Block& block, std::int64_t size, float maximum, const ObserveScratch& scratch) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        Float masses[Lanes::kVectors] = {};
        Float weighted[Lanes::kVectors] = {};
        Lanes::each(groups, [&](std::int64_t i, int j) __attribute__((always_inline)) {
            const Float log_mass = load<typename Lanes::Vec>(scratch.row.values + first + i) - maximum;
            const Float mass = exp_nonpositive<Float, typename Lanes::Int>(log_mass);
            write_vector(scratch.raw.values + first + i, mass);
            masses[j] += mass;
            weighted[j] += mass > 0.0f ? mass * log_mass : Float{};
        });
        Lanes::put(scratch.raw.chunk_masses + chunk, Lanes::pairwise(masses));
        Lanes::put(scratch.weighted + chunk, Lanes::pairwise(weighted));
    });
    const double norm = add_chunk_masses(block, size, scratch.raw);
    const double weighted = sum_of_chunks(scratch.weighted, chunks_of(size));
    const double entropy = std::log(norm) - weighted / norm;
    return {norm, entropy > 0.0 ? entropy : 0.0};
}

// Total variation of the raw masses to softmax(draft_logits / temperature); NaN if that has no softmax.
template <class Block, class D>
DDTREE_HD double total_variation(const Block& block, const D* draft_logits, std::int64_t size, float temperature,
                                 double raw_norm, const ObserveScratch& scratch) {
    using Lanes = LanesOf<Block>;
    using Float = typename Lanes::Float;
    const RowLook look = read_logits(block, draft_logits, size, scratch.draft);
    if (look.fault != SampleFault::none) return std::numeric_limits<double>::quiet_NaN();
    constexpr float kNone = -std::numeric_limits<float>::infinity();
    const double norm = exp_masses(block, size, look.maximum, temperature, kNone, scratch.draft);
    const auto draft_scale = static_cast<float>(1.0 / norm);
    const auto raw_scale = static_cast<float>(1.0 / raw_norm);
    each_chunk(block, size, [&](std::int64_t chunk, std::int64_t first, std::int64_t groups) {
        const float off = Lanes::sum(groups, [&](std::int64_t i) __attribute__((always_inline)) {
            using Vec = typename Lanes::Vec;
            const Float difference = load<Vec>(scratch.raw.values + first + i) * raw_scale -
                                     load<Vec>(scratch.draft.values + first + i) * draft_scale;
            return difference > 0.0f ? difference : Float{};
        });
        Lanes::put(scratch.weighted + chunk, off);
    });
    block.sync(kSiteVariation);
    const double total = sum_of_chunks(scratch.weighted, chunks_of(size));
    return total < 1.0 ? total : 1.0;
}

}  // namespace detail

// Looks at one row, all workers together.
template <class Block, class T, class D>
DDTREE_HD void observe_row(const Block& block, const RowToObserve<T, D>& in, const ObservedRow& out,
                           const ObserveScratch& scratch) {
    const std::int64_t size = in.size;
    const bool first = block.rank() == 0;
    const RowLook look = read_logits(block, in.logits, size, scratch.row);
    if (first) *out.view = {look.fault, 0, 0.0, std::numeric_limits<double>::quiet_NaN()};
    if (look.fault != SampleFault::none) return;

    pick_likeliest(block, size, in.most_shown, scratch.row);
    if (first) out.view->shown = detail::put_in_order(scratch.row, size, in.most_shown, out.likeliest);

    const detail::RawMasses raw = detail::raw_masses(block, size, look.maximum, scratch);
    const float* sampled = scratch.raw.values;
    double norm = raw.norm;
    if (!in.rule.plain()) {
        norm = masses_of_look(block, size, look, in.rule, scratch.row).norm;
        sampled = scratch.row.values;
    }
    double variation = std::numeric_limits<double>::quiet_NaN();
    if (in.draft_logits != nullptr)
        variation = detail::total_variation(block, in.draft_logits, size, in.draft_temperature, raw.norm, scratch);
    if (!first) return;
    out.view->entropy = raw.entropy;
    out.view->total_variation = variation;
    const auto fill = [&](ShownToken& shown) {
        shown.prob = shown.raw_prob = 0.0;
        if (shown.token < 0 || shown.token >= size) return;
        shown.prob = static_cast<double>(sampled[shown.token]) / norm;
        shown.raw_prob = static_cast<double>(scratch.raw.values[shown.token]) / raw.norm;
    };
    for (int i = 0; i < out.view->shown; ++i) fill(out.likeliest[i]);
    for (int i = 0; i < in.children; ++i) fill(out.children[i]);
}

}  // namespace ddtree
