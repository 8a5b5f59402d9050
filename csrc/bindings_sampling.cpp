// Samplers and coins. Pointers come as integers: an array argument would cost 2 us each (DLPack).
// ddtree/sampling.py checks shapes, dtypes and contiguity.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/sampling.h"
#include "ddtree/philox.h"

namespace nb = nanobind;

namespace {

template <class T>
T* at(std::uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

ddtree::cpu::AnyLogits row_of(std::uintptr_t first, int element, std::int64_t stride, std::int64_t size,
                              std::int64_t row) {
    const std::int64_t bytes = element == static_cast<int>(ddtree::Element::float32) ? 4 : 2;
    return {first == 0 ? nullptr : at<const std::byte>(first) + row * stride * bytes, stride, size,
            static_cast<ddtree::Element>(element)};
}

nb::list list_of(std::span<const ddtree::ShownToken> tokens, double ddtree::ShownToken::*field) {
    nb::list values;
    for (const ddtree::ShownToken& token : tokens) values.append(token.*field);
    return values;
}

void coins(std::uint64_t seed, std::uint64_t step, int count, std::uintptr_t out) {
    for (int node = 0; node < count; ++node)
        at<float>(out)[node] = ddtree::node_coin(seed, step, static_cast<std::uint32_t>(node), ddtree::kNodeCoins);
}

float final_coin(std::uint64_t seed, std::uint64_t step) {
    return ddtree::node_coin(seed, step, 0, ddtree::kFinalCoin);
}

// The status, or (accept_index, bonus_token_id, bonus_source, bonus_prob, bonus_cumulative, residual_mass,
// [(node, prob, cumulative, coin, accepted), ...]).
nb::object verify(std::uintptr_t logits, int element, std::int64_t stride, std::int64_t size, int nodes,
                  std::uintptr_t candidates, std::uintptr_t next_token, std::uintptr_t next_sibling,
                  double temperature, std::int64_t top_k, double top_p, std::uintptr_t coins, float final_coin,
                  double threshold_single, double threshold_acc) {
    ddtree::cpu::Outcome outcome;
    {
        const nb::gil_scoped_release released;
        outcome = ddtree::cpu::verify_tree(
            {at<const void>(logits), stride, size, static_cast<ddtree::Element>(element)},
            {static_cast<float>(temperature), top_k, top_p},
            {at<const std::int64_t>(candidates), at<const std::int64_t>(next_token),
             at<const std::int64_t>(next_sibling), nodes, nodes, true},
            {at<const float>(coins), final_coin, threshold_single, threshold_acc});
    }
    const ddtree::WalkVerdict& verdict = *outcome.verdict;
    if (verdict.fault != ddtree::SampleFault::none)
        return nb::int_(ddtree::pack_status(verdict.fault, verdict.fault_node));
    nb::list path;
    for (int i = 0; i <= verdict.accepted; ++i) path.append(outcome.path[i]);
    nb::list tried;
    for (int i = 0; i < verdict.tried; ++i) {
        const ddtree::Tried& child = outcome.tried[i];
        tried.append(nb::make_tuple(child.node, child.prob, child.cumulative, child.coin, child.accepted != 0));
    }
    return nb::make_tuple(path, verdict.bonus_token, static_cast<int>(verdict.bonus_source), verdict.bonus_prob,
                          verdict.bonus_cumulative, verdict.residual_mass, tried);
}

// For each node (token_ids, probs, raw_probs, child_probs, child_raw_probs, entropy, total variation or None); for
// a faulty row its status. Draft rows below 0: none.
nb::list observe(std::uintptr_t logits, int element, std::int64_t stride, std::int64_t size,
                 const std::vector<std::int64_t>& nodes, const std::vector<std::vector<std::int64_t>>& children,
                 double temperature, std::int64_t top_k, double top_p, std::uintptr_t draft_logits, int draft_element,
                 std::int64_t draft_stride, const std::vector<std::int64_t>& draft_rows, double draft_temperature,
                 int count) {
    nb::list views;
    std::vector<ddtree::ShownToken> likeliest(static_cast<std::size_t>(count));
    std::vector<ddtree::ShownToken> shown;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
        shown.clear();
        for (const std::int64_t token : children[i]) shown.push_back({token, 0.0, 0.0});
        ddtree::RowView view;
        {
            const nb::gil_scoped_release released;
            ddtree::cpu::observe_row(
                row_of(logits, element, stride, size, nodes[i]),
                row_of(draft_rows[i] < 0 ? 0 : draft_logits, draft_element, draft_stride, size, draft_rows[i]),
                {{static_cast<float>(temperature), top_k, top_p},
                 static_cast<float>(draft_temperature),
                 count,
                 static_cast<int>(shown.size())},
                {&view, likeliest.data(), shown.data()});
        }
        if (view.fault != ddtree::SampleFault::none) {
            views.append(ddtree::pack_status(view.fault, nodes[i]));
            continue;
        }
        nb::list ids;
        for (int k = 0; k < view.shown; ++k) ids.append(likeliest[static_cast<std::size_t>(k)].token);
        const nb::object variation =
            std::isnan(view.total_variation) ? nb::none() : nb::object(nb::float_(view.total_variation));
        const std::span tops(likeliest.data(), static_cast<std::size_t>(view.shown));
        views.append(nb::make_tuple(ids, list_of(tops, &ddtree::ShownToken::prob),
                                    list_of(tops, &ddtree::ShownToken::raw_prob),
                                    list_of(shown, &ddtree::ShownToken::prob),
                                    list_of(shown, &ddtree::ShownToken::raw_prob), view.entropy, variation));
    }
    return views;
}

}  // namespace

void bind_sampling(nb::module_& m) {
    m.def("coins", &coins);
    m.def("final_coin", &final_coin);
    m.def("verify", &verify);
    m.def("observe", &observe);
}
