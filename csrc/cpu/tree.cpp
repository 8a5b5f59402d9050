#include "cpu/tree.h"

#include <bit>
#include <memory>

#include "ddtree/retrieve.h"
#include "ddtree/tree.h"

namespace ddtree::cpu {

namespace {

// Memory whose contents nobody has set.
template <class T>
std::unique_ptr<T[]> uninitialised(std::int64_t count) {
    return std::make_unique_for_overwrite<T[]>(static_cast<std::size_t>(count));
}

// What one build needs.
class TreeMemory {
   public:
    TreeMemory(int rows, int ranks, int budget)
        : bucket_bits_(std::bit_width(static_cast<unsigned>(ranks)) + 3),  // 8 to 16 buckets for each rank
          nodes_(static_cast<std::int64_t>(budget) + 1),
          candidates_(uninitialised<Candidate>(nodes_)),
          costs_(uninitialised<std::uint64_t>(nodes_ + 2)),
          places_(uninitialised<std::int64_t>(nodes_ + 2)),
          numbers_(uninitialised<std::int32_t>(nodes_ + buckets() + static_cast<std::int64_t>(rows) * ranks)) {}

    TreeScratch scratch() {
        std::int32_t* const heads = numbers_.get() + nodes_;
        return {candidates_.get(), numbers_.get(), costs_.get(), places_.get(), &count_,
                RowsScratch{heads, heads + buckets(), bucket_bits_}};
    }

   private:
    std::int64_t buckets() const { return std::int64_t{1} << bucket_bits_; }

    int bucket_bits_;
    std::int64_t nodes_;
    std::int32_t count_ = 0;
    std::unique_ptr<Candidate[]> candidates_;
    std::unique_ptr<std::uint64_t[]> costs_;
    std::unique_ptr<std::int64_t[]> places_;
    std::unique_ptr<std::int32_t[]> numbers_;
};

}  // namespace

template <class T>
std::int64_t build_tree(const T* log_probs, const std::int64_t* token_ids, const std::int64_t* child_rows, int rows,
                        int ranks, int budget, std::int64_t* buffer) {
    TreeMemory memory(rows, ranks, budget);
    std::int64_t status[2];
    ddtree::build_tree(SerialBlock{}, CandidateRows<T>{log_probs, token_ids, child_rows, rows, ranks}, budget,
                       memory.scratch(), TreeArrays::over(buffer, budget, status));
    return status[1] == 0 ? status[0] : -status[1];
}

template <class T>
void build_padded_trees(const PaddedTrees<T>& in) {
    TreeMemory memory(in.rows, in.ranks, in.budget);
    for (int tree = 0; tree < in.batch; ++tree) build_padded_tree(SerialBlock{}, in, tree, memory.scratch());
}

template void build_padded_trees(const PaddedTrees<float>&);
template void build_padded_trees(const PaddedTrees<double>&);

template std::int64_t build_tree(const float*, const std::int64_t*, const std::int64_t*, int, int, int, std::int64_t*);
template std::int64_t build_tree(const double*, const std::int64_t*, const std::int64_t*, int, int, int, std::int64_t*);

int encode_tree(const std::int64_t* parents, int nodes, int length, std::int64_t batch_offset, std::int64_t* arrays) {
    const int bad = first_bad_parent(parents, nodes);
    if (bad >= 0) return bad;
    ddtree::encode_tree(SerialBlock{}, parents, nodes, length, batch_offset, arrays, arrays + length,
                        arrays + 2 * static_cast<std::int64_t>(length));
    return -1;
}

void write_visibility(const std::int64_t* parents, int nodes, int length, std::uint8_t* out) {
    ddtree::write_visibility(SerialBlock{}, parents, nodes, length, out);
}

std::int64_t check_topology(const std::int64_t* next_token, const std::int64_t* next_sibling,
                            const std::int64_t* tokens, int nodes) {
    const auto scratch = uninitialised<std::int32_t>(topology_scratch_words(nodes));
    return ddtree::check_topology(SerialBlock{}, next_token, next_sibling, tokens, nodes, scratch.get());
}

}  // namespace ddtree::cpu
