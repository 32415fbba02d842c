// Optimizers and the gradient scaler, one tensor a launch. All tensors are contiguous.

struct OptimizerArguments {
    Array grad;
    Array parameter;
    // Momentum, or Adam's first moment.
    Array first;
    Array second;
    // float, or nothing: a step that found an infinity changes nothing.
    u64 found_inf;
    // The gradient scaler's scale and growth tracker (int).
    u64 scale;
    u64 growth_tracker;
    i64 count;
    float rate;
    float momentum;
    float beta1;
    float beta2;
    float eps;
    float weight_decay;
    // 1 - beta^step.
    float correction1;
    float correction2;
    int growth_interval;
    // Whether the momentum is made in this launch.
    int is_first;
};

__device__ __forceinline__ bool skips(const OptimizerArguments& p)
{
    return p.found_inf != 0 && *(const float*)p.found_inf != 0.0f;
}

// Runs `update` on groups of four and then on the rest.
#define EACH_GROUP(update)                                                                        \
    i64 whole = p.count / 4;                                                                      \
    for (i64 group = thread_index(); group < whole; group += thread_count()) update<4>(p, group * 4); \
    for (i64 i = whole * 4 + thread_index(); i < p.count; i += thread_count()) update<1>(p, i);

template <int V>
__device__ __forceinline__ void sgd_group(const OptimizerArguments& p, i64 at)
{
    float grad[V], parameter[V];
    load_group<V>(p.grad, at, 1, grad);
    load_group<V>(p.parameter, at, 1, parameter);
#pragma unroll
    for (int k = 0; k < V; ++k) parameter[k] -= p.rate * grad[k];
    store_group<V>(p.parameter, at, 1, parameter);
}

extern "C" __global__ void sgd(const __grid_constant__ OptimizerArguments p)
{
    if (skips(p)) return;
    EACH_GROUP(sgd_group)
}

template <int V>
__device__ __forceinline__ void sgd_momentum_group(const OptimizerArguments& p, i64 at)
{
    float grad[V], parameter[V], momentum[V];
    load_group<V>(p.grad, at, 1, grad);
    load_group<V>(p.parameter, at, 1, parameter);
    if (p.is_first) {
#pragma unroll
        for (int k = 0; k < V; ++k) momentum[k] = grad[k];
    } else {
        load_group<V>(p.first, at, 1, momentum);
#pragma unroll
        for (int k = 0; k < V; ++k) momentum[k] = rounded(p.first.dtype, p.momentum * momentum[k] + grad[k]);
    }
#pragma unroll
    for (int k = 0; k < V; ++k) parameter[k] -= p.rate * momentum[k];
    store_group<V>(p.first, at, 1, momentum);
    store_group<V>(p.parameter, at, 1, parameter);
}

extern "C" __global__ void sgd_momentum(const __grid_constant__ OptimizerArguments p)
{
    if (skips(p)) return;
    EACH_GROUP(sgd_momentum_group)
}

template <int V>
__device__ __forceinline__ void adam_group(const OptimizerArguments& p, i64 at)
{
    float grad[V], parameter[V], first[V], second[V];
    load_group<V>(p.grad, at, 1, grad);
    load_group<V>(p.parameter, at, 1, parameter);
    load_group<V>(p.first, at, 1, first);
    load_group<V>(p.second, at, 1, second);
#pragma unroll
    for (int k = 0; k < V; ++k) {
        parameter[k] *= 1.0f - p.rate * p.weight_decay;
        first[k] += (1.0f - p.beta1) * (grad[k] - first[k]);
        second[k] = p.beta2 * second[k] + (1.0f - p.beta2) * grad[k] * grad[k];
        float denominator = sqrtf(second[k]) / sqrtf(p.correction2) + p.eps;
        parameter[k] -= p.rate / p.correction1 * first[k] / denominator;
    }
    store_group<V>(p.first, at, 1, first);
    store_group<V>(p.second, at, 1, second);
    store_group<V>(p.parameter, at, 1, parameter);
}

extern "C" __global__ void adam(const __grid_constant__ OptimizerArguments p)
{
    if (skips(p)) return;
    EACH_GROUP(adam_group)
}

template <int V>
__device__ __forceinline__ void unscale_group(const OptimizerArguments& p, i64 at)
{
    float inverse = 1.0f / *(const float*)p.scale;
    float grad[V];
    load_group<V>(p.grad, at, 1, grad);
    bool is_finite = true;
#pragma unroll
    for (int k = 0; k < V; ++k) {
        is_finite = is_finite && isfinite(grad[k]);
        grad[k] *= inverse;
    }
    if (!is_finite) *(float*)p.found_inf = 1.0f;
    store_group<V>(p.grad, at, 1, grad);
}

extern "C" __global__ void unscale(const __grid_constant__ OptimizerArguments p) { EACH_GROUP(unscale_group) }

// One thread.
extern "C" __global__ void update_scale(const __grid_constant__ OptimizerArguments p)
{
    float* scale = (float*)p.scale;
    int* tracker = (int*)p.growth_tracker;
    if (*(const float*)p.found_inf != 0.0f) {
        *scale *= 0.5f;
        *tracker = 0;
        return;
    }
    if (*tracker + 1 < p.growth_interval) {
        *tracker += 1;
        return;
    }
    *tracker = 0;
    if (isfinite(*scale * 2.0f)) *scale *= 2.0f;
}
