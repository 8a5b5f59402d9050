#include "cpu/forward.h"

#include <algorithm>

#include "cpu/attention_width.h"
#include "cpu/instruction_set.h"

namespace ddtree::cpu {

namespace {

constexpr std::size_t kLine = 64;

// Hands out parts of one stretch of memory; without it, counts what they take.
class Stretch {
   public:
    explicit Stretch(std::byte* memory) : memory_(memory) {}

    template <class T>
    T* take(std::int64_t count) {
        const std::size_t at = used_;
        used_ += (static_cast<std::size_t>(count) * sizeof(T) + kLine - 1) / kLine * kLine;
        return memory_ == nullptr ? nullptr : reinterpret_cast<T*>(memory_ + at);
    }

    std::size_t used() const { return used_; }

   private:
    std::byte* memory_;
    std::size_t used_ = 0;
};

template <class X>
struct Room {
    Workspace<X> space;
    std::vector<Desk<X>> desks;
};

template <class X>
Room<X> lay_out(const Shape& shape, int rows, int workers, Stretch& stretch) {
    Room<X> room;
    Workspace<X>& space = room.space;
    space.hidden_stride = rounded_up(shape.width, kBlock);
    space.normed_stride = rounded_up(shape.width, kGroup);
    space.attended_stride = rounded_up(shape.heads * shape.head_dim, kGroup);
    space.gated_stride = rounded_up(shape.gated, kGroup);
    space.hidden = stretch.take<float>(rows * space.hidden_stride);
    space.queries = stretch.take<float>(rows * shape.heads * shape.head_dim);
    // A tile reads 16 rows where there are fewer: what stands there counts for rows that nobody reads.
    const std::int64_t read = rounded_up(rows, 16);
    space.attended = stretch.take<X>(read * space.attended_stride);
    space.gated = stretch.take<X>(read * space.gated_stride);
    const std::int64_t widest = std::max({space.normed_stride, space.attended_stride, space.gated_stride});
    for (int worker = 0; worker < workers; ++worker) {
        Desk<X> desk;
        desk.normed = stretch.take<X>(read * space.normed_stride);
        desk.part = stretch.take<float>(rows * (kTogether * kBlock + shape.head_dim));
        desk.attention = stretch.take<float>(attention_floats(shape, rows));
        // x as pairs and the unpacked tiles of kTogether blocks; or x as float32.
        const std::int64_t tiles = (read / 16 + kTogether) * (widest / kGroup) + 2 * kTogether;
        desk.room = stretch.take<std::byte>(std::max(tiles * 1024, rows * widest * std::int64_t{sizeof(float)}));
        room.desks.push_back(desk);
    }
    return room;
}

template <class X>
Product<X> choose_product(const ForwardKernels& kernels) {
    if constexpr (sizeof(X) == sizeof(float)) {
        return kernels.product_float;
    } else {
        if (instruction_set() == InstructionSet::avx512 && has_amx()) return {prepare_amx, product_amx};
        if (has_pairs()) return {prepare_pairs, product_pairs};
        return kernels.product_bfloat16;
    }
}

template <class X>
PassWorker<X> choose_worker(const ForwardKernels& kernels) {
    if constexpr (sizeof(X) == sizeof(float))
        return kernels.of_float;
    else
        return kernels.of_bfloat16;
}

}  // namespace

bool can_run_forward() {
#if defined(__x86_64__)
    return instruction_set() != InstructionSet::portable && __builtin_cpu_supports("fma");
#else
    return false;
#endif
}

template <class X>
void Forward<X>::run(const Pass<X>& pass, int workers) {
    const std::lock_guard<std::mutex> alone(running_);
    Stretch counting(nullptr);
    lay_out<X>(model_.shape, pass.rows, workers, counting);
    if (counting.used() > memory_.get_deleter().bytes) memory_ = huge_memory(counting.used());
    Stretch stretch(memory_.get());
    Room<X> room = lay_out<X>(model_.shape, pass.rows, workers, stretch);

    seen_.clear();
    seen_first_.assign(1, 0);
    for (std::int64_t row = 0; row < pass.rows && pass.states == nullptr; ++row) {
        for (std::int32_t other = 0; other < pass.rows; ++other)
            if (pass.visibility[row * pass.rows + other]) seen_.push_back(other);
        seen_first_.push_back(static_cast<std::int64_t>(seen_.size()));
    }
    room.space.seen = seen_.data();
    room.space.seen_first = seen_first_.data();

    const ForwardKernels& kernels = instruction_set() == InstructionSet::avx512 ? forward_avx512 : forward_avx2;
    const Product<X> product = choose_product<X>(kernels);
    const PassWorker<X> work = choose_worker<X>(kernels);
    team_.run(workers, [&](int worker) {
        work(model_, pass, room.space, room.desks[static_cast<std::size_t>(worker)], product, team_, worker, workers);
    });
}

template class Forward<float>;
template class Forward<BFloat16>;

}  // namespace ddtree::cpu
