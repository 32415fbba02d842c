// Fills what is about to be written with all ones, and counts what is left of it afterwards. As a float of
// any width that is a NaN that no arithmetic makes, as an integer -1, as a truth value none.

struct PoisonArguments {
    u64 address;
    i64 strides[MAX_RANK];
    i64 shape[MAX_RANK];
    i64 count;
    int rank;
    // Bytes of an element.
    int size;
    // How many elements are still poisoned, and the first of them.
    u64 found;
};

__device__ __forceinline__ u64 place(const PoisonArguments& p, i64 index)
{
    i64 at = 0;
    i64 rest = index;
    for (int d = p.rank - 1; d > 0; --d) {
        i64 i;
        rest = divide(rest, p.shape[d], i);
        at += i * p.strides[d];
    }
    at += rest * p.strides[0];
    return p.address + (u64)at * (u64)p.size;
}

extern "C" __global__ void poison_fill(const __grid_constant__ PoisonArguments p)
{
    for (i64 index = thread_index(); index < p.count; index += thread_count()) {
        u64 at = place(p, index);
        switch (p.size) {
        case 1: *(u8*)at = 0xff; break;
        case 2: *(u16*)at = 0xffff; break;
        case 4: *(u32*)at = ~0u; break;
        default: *(u64*)at = ~0ull; break;
        }
    }
}

extern "C" __global__ void poison_count(const __grid_constant__ PoisonArguments p)
{
    for (i64 index = thread_index(); index < p.count; index += thread_count()) {
        u64 at = place(p, index);
        bool is_left;
        switch (p.size) {
        case 1: is_left = *(const u8*)at == 0xff; break;
        case 2: is_left = *(const u16*)at == 0xffff; break;
        case 4: is_left = *(const u32*)at == ~0u; break;
        default: is_left = *(const u64*)at == ~0ull; break;
        }
        if (is_left) {
            atomicAdd((u64*)p.found, 1ull);
            atomicMin((u64*)p.found + 1, (u64)index);
        }
    }
}
