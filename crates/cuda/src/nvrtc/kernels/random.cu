// Random values, and dropout. The generator is Philox, counted by groups of four elements.

// Must agree with `Random` in random.rs.
enum Distribution { NORMAL = 0, UNIFORM = 1, BELOW = 2 };

struct RandomArguments {
    Array out;
    i64 count;
    u64 seed;
    // Largest magnitude of a uniform value.
    float bound;
    int distribution;
    // Past the largest integer.
    u64 limit;
};

extern "C" __global__ void random(const __grid_constant__ RandomArguments p)
{
    i64 groups = (p.count + 3) / 4;
    for (i64 group = thread_index(); group < groups; group += thread_count()) {
        Words words = philox((u64)group, p.seed);
        float values[4];
        if (p.distribution == NORMAL) {
#pragma unroll
            for (int k = 0; k < 4; k += 2) {
                // Box and Muller's pair.
                float radius = sqrtf(-2.0f * logf(unit(words.at[k])));
                float angle = 6.283185307179586f * unit(words.at[k + 1]);
                values[k] = radius * cosf(angle);
                values[k + 1] = radius * sinf(angle);
            }
        } else {
#pragma unroll
            for (int k = 0; k < 4; ++k) values[k] = p.bound * (2.0f * unit(words.at[k]) - 1.0f);
        }
        if (p.distribution != BELOW && group * 4 + 4 <= p.count) {
            store_group<4>(p.out, group * 4, 1, values);
            continue;
        }
        for (int k = 0; k < 4 && group * 4 + k < p.count; ++k) {
            if (p.distribution == BELOW)
                store_integer(p.out, group * 4 + k, (i64)(((u64)words.at[k] * p.limit) >> 32));
            else
                store(p.out, group * 4 + k, values[k]);
        }
    }
}

struct DropoutArguments {
    Array x;
    Array y;
    u64 mask;
    i64 count;
    u64 seed;
    float p;
    float scale;
};

// Which of V neighbours are kept, a bit each; V is four or eight.
template <int V>
__device__ __forceinline__ u32 kept_of(const DropoutArguments& p, i64 group)
{
    u32 kept = 0;
#pragma unroll
    for (int four = 0; four < V / 4; ++four) {
        Words words = philox((u64)(group * (V / 4) + four), p.seed);
#pragma unroll
        for (int k = 0; k < 4; ++k) kept |= (u32)(unit(words.at[k]) >= p.p) << (4 * four + k);
    }
    return kept;
}

// Four bits as four bytes, and back.
__device__ __forceinline__ u32 bytes_of(u32 bits)
{
    return (bits & 1) | ((bits & 2) << 7) | ((bits & 4) << 14) | ((bits & 8) << 21);
}

__device__ __forceinline__ u32 bits_of(u32 bytes) { return (bytes * 0x10204080u) >> 28; }

// V elements a thread; the last one takes what is left.
template <int V>
__device__ __forceinline__ void drop(const DropoutArguments& p)
{
    u8* mask = (u8*)p.mask;
    i64 group = thread_index();
    if (group * V >= p.count) return;
    u32 kept = kept_of<V>(p, group);
    if (group * V + V <= p.count) {
        float values[V];
        load_group<V>(p.x, group * V, 1, values);
#pragma unroll
        for (int k = 0; k < V; ++k) values[k] = (kept >> k) & 1 ? values[k] * p.scale : 0.0f;
        store_group<V>(p.y, group * V, 1, values);
        if (V == 8)
            *(uint2*)(mask + group * V) = make_uint2(bytes_of(kept), bytes_of(kept >> 4));
        else
            *(u32*)(mask + group * V) = bytes_of(kept);
        return;
    }
    for (int k = 0; group * V + k < p.count; ++k) {
        bool keep = (kept >> k) & 1;
        store(p.y, group * V + k, keep ? load(p.x, group * V + k) * p.scale : 0.0f);
        mask[group * V + k] = keep;
    }
}

extern "C" __global__ void __launch_bounds__(256) dropout4(const __grid_constant__ DropoutArguments p) { drop<4>(p); }

extern "C" __global__ void __launch_bounds__(256) dropout8(const __grid_constant__ DropoutArguments p) { drop<8>(p); }

// `x` is the gradient of the result, `y` that of the operand.
template <int V>
__device__ __forceinline__ void drop_grad(const DropoutArguments& p)
{
    const u8* mask = (const u8*)p.mask;
    i64 group = thread_index();
    if (group * V >= p.count) return;
    if (group * V + V <= p.count) {
        u32 kept = bits_of(*(const u32*)(mask + group * V));
        if (V == 8) kept |= bits_of(*(const u32*)(mask + group * V + 4)) << 4;
        float values[V];
        load_group<V>(p.x, group * V, 1, values);
#pragma unroll
        for (int k = 0; k < V; ++k) values[k] = (kept >> k) & 1 ? values[k] * p.scale : 0.0f;
        store_group<V>(p.y, group * V, 1, values);
        return;
    }
    for (int k = 0; group * V + k < p.count; ++k)
        store(p.y, group * V + k, mask[group * V + k] ? load(p.x, group * V + k) * p.scale : 0.0f);
}

extern "C" __global__ void __launch_bounds__(256) dropout_grad4(const __grid_constant__ DropoutArguments p)
{
    drop_grad<4>(p);
}

extern "C" __global__ void __launch_bounds__(256) dropout_grad8(const __grid_constant__ DropoutArguments p)
{
    drop_grad<8>(p);
}
