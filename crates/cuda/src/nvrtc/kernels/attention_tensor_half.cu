// Tiles of float16 or bfloat16 elements (ELEMENT says which), and products of them on tensor cores.
//
// Stored elements are multiplied exactly and summed in float32. Scores and their gradients are rounded to the element
// type where they are left operands, as PyTorch's kernels do.

#if __CUDA_ARCH__ >= 800

typedef u16 Stored;

// Sixteen rows as left operands for sixteen features each.
typedef u32 Rows[FEATURES / 16][4];

// Tiles of eight columns that one call multiplies where some of 64 columns are left out.
#define NARROW 2

// Tiles of eight columns that the gradients' passes work on at a time.
#define QUERY_STEP 2
#define KEY_STEP 2

// Tiles of keys and values, or of queries and gradients, that the gradients' passes hold: one is worked on while the
// next comes.
#define BUFFERS 2

// Blocks that a multiprocessor has registers for, of each kernel.
#define FORWARD_BLOCKS (FEATURES > 64 ? 2 : FEATURES > 32 ? 3 : 4)
#define QUERY_BLOCKS (FEATURES > 64 ? 2 : FEATURES > 32 ? 4 : 5)
#define KEY_BLOCKS (FEATURES > 64 ? 2 : FEATURES > 32 ? 3 : 4)

__device__ __forceinline__ float widened(Stored value)
{
    return ELEMENT == F16 ? half_to_float(value) : brain_to_float(value);
}

__device__ __forceinline__ Stored narrowed(float value)
{
    return ELEMENT == F16 ? float_to_half(value) : float_to_brain(value);
}

// Two neighbours whose place is a multiple of their length.
__device__ __forceinline__ float2 load_pair(const Stored* at)
{
    u32 word = *(const u32*)at;
    return make_float2(widened((u16)word), widened((u16)(word >> 16)));
}

__device__ __forceinline__ void store_pair(Stored* at, float first, float second)
{
    *(u32*)at = to_halves(ELEMENT, first, second);
}

// Where an element of a tile is in shared memory: rows exchange groups of eight so that reading one place of eight rows
// meets no bank twice.
__device__ __forceinline__ int place(int row, int feature)
{
    int exchange = FEATURES == 32 ? (row >> 1) & 3 : row & 7;
    return row * FEATURES + (feature ^ (exchange << 3));
}

__device__ __forceinline__ void mma(float c[4], const u32 a[4], u32 b0, u32 b1)
{
    if (ELEMENT == F16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
            "{%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four blocks of eight rows of eight elements, as the right operands of two products; thread 8j + r of a warp says where
// row r of block j is.
__device__ __forceinline__ void load_blocks(u32 b[4], const Stored* row)
{
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at));
}

// Likewise, with rows and columns of each block exchanged.
__device__ __forceinline__ void load_blocks_turned(u32 b[4], const Stored* row)
{
    u32 at = (u32)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                 : "r"(at));
}

__device__ __forceinline__ void read_rows(Rows& rows, const View4& view, i64 base, int first, int positions, int width)
{
    const Stored* source = (const Stored*)view.array.address + base;
    int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    bool paired = is_paired(view, sizeof(Stored));
#pragma unroll
    for (int k = 0; k < FEATURES / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int position = first + 2 * g + (i & 1), feature = 16 * k + 2 * t + 8 * (i >> 1);
            const Stored* at = source + position * view.strides[2] + feature * view.strides[3];
            int count = position < positions ? width - feature : 0;
            u32 word = 0;
            if (paired && count > 1) {
                word = *(const u32*)at;
            } else {
                if (count > 0) word = at[0];
                if (count > 1) word |= (u32)at[view.strides[3]] << 16;
            }
            rows[k][i] = word;
        }
    }
}

// c[n] += rows · tileᵀ for N tiles of eight columns from `column` on.
template <int N>
__device__ __forceinline__ void multiply_turned(float c[N][4], const Rows& rows, const Stored* tile, int column)
{
    int block = (threadIdx.x & 31) >> 3, row = column + (threadIdx.x & 7) + 8 * (block >> 1);
#pragma unroll
    for (int k = 0; k < FEATURES / 16; ++k) {
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            u32 b[4];
            load_blocks(b, tile + place(row + 8 * n, 16 * k + 8 * (block & 1)));
            mma(c[n], rows[k], b[0], b[1]);
            mma(c[n + 1], rows[k], b[2], b[3]);
        }
    }
}

// c += scores · tile for N groups of eight of the tile's rows from `row` on.
template <int N>
__device__ __forceinline__ void multiply_plain(float c[FEATURES / 8][4], const float scores[N][4], const Stored* tile,
                                               int row)
{
    int block = (threadIdx.x & 31) >> 3, own = row + (threadIdx.x & 7) + 8 * (block & 1);
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        u32 a[4] = { to_halves(ELEMENT, scores[k][0], scores[k][1]), to_halves(ELEMENT, scores[k][2], scores[k][3]),
                     to_halves(ELEMENT, scores[k + 1][0], scores[k + 1][1]),
                     to_halves(ELEMENT, scores[k + 1][2], scores[k + 1][3]) };
#pragma unroll
        for (int n = 0; n < FEATURES / 8; n += 2) {
            u32 b[4];
            load_blocks_turned(b, tile + place(own + 8 * k, 8 * (n + (block >> 1))));
            mma(c[n], a, b[0], b[1]);
            mma(c[n + 1], a, b[2], b[3]);
        }
    }
}

#endif
