// Random numbers as a card draws them, from the seed and the offset of the script's own generator: masks, lengths and boxes that a script draws on
// the GPU then have the sizes that they have there. The order is that of PyTorch's kernels (ATen/native/cuda/DistributionTemplates.h).
#pragma once
#include "choices.h"
#include <ATen/core/PhiloxRNGEngine.h>

// src/runtime/devices.rs.
extern "C" int cudaDeviceGetAttribute(int* value, int attribute, int device);

namespace batchfit {

struct Draw {
  std::string name;
  Tensor to;
  Stack args;
  uint64_t seed, offset;  // before the real kernel moves it on

  // Nothing where the operator draws otherwise. In place: `name` without its namespace and the underscore.
  static std::optional<Draw> of(const std::string& full, const Stack& args) {
    static const std::set<std::string> names = {"aten::random_", "aten::uniform_", "aten::normal_", "aten::bernoulli_", "aten::exponential_"};
    if (!names.count(full) || !args[0].toTensor().is_non_overlapping_and_dense()) return {};
    const Tensor& to = args[0].toTensor();
    const bool is_double = to.scalar_type() == at::kDouble, is_whole = full == "aten::random_";
    if (is_whole ? args.size() < 3 || !args[args.size() - 2].isInt() : is_double || (full == "aten::bernoulli_" && args[1].isTensor() && !(to.is_contiguous() && args[1].toTensor().sizes() == to.sizes()))) return {};
    try {
      const at::Generator generator = args.back().isNone() ? at::globalContext().defaultGenerator(to.device()) : args.back().toGenerator();
      return Draw{full, to, args, generator.current_seed(), generator.get_offset()};
    } catch (const std::exception&) {
      return {};  // while a graph is captured
    }
  }

  uint32_t word(uint64_t thread, uint64_t call, int which) const {
    at::Philox4_32 engine(seed, thread, offset / 4 + call);
    while (which--) engine();
    return engine();
  }

  Tensor fill() const {
    constexpr int THREADS_PER_SM = 39, SMS = 16;  // cudaDeviceAttr
    int threads_per_sm = 2048, sms = 1;
    cudaDeviceGetAttribute(&threads_per_sm, THREADS_PER_SM, to.device().index()), cudaDeviceGetAttribute(&sms, SMS, to.device().index());
    const int64_t n = to.numel(), threads = 256 * std::min<int64_t>((n + 255) / 256, sms * (threads_per_sm / 256));
    const auto number = [&](int i) { return args[i].isTensor() ? 0.0 : args[i].toScalar().toDouble(); };
    const auto uniform = [](uint32_t word) { return std::fma((float)word, 0x1p-32f, 0x1p-33f); };
    const bool is_whole = name == "aten::random_", is_normal = name == "aten::normal_";
    const int64_t base = is_whole && args.size() > 3 ? args[1].toInt() : 0;
    const uint64_t range = is_whole ? args[args.size() - 2].toInt() - base : 1;
    const bool is_wide = range >= 1ull << 28, is_mask = name == "aten::bernoulli_";
    const Tensor chances = is_mask && args[1].isTensor() ? plain_on_cpu(args[1].toTensor()).to(at::kFloat).contiguous() : Tensor();
    const double a = is_whole ? 0 : number(1), b = is_whole || args.size() < 4 ? 0 : number(2);
    Tensor drawn = at::empty({n}, is_whole ? at::kLong : at::kFloat);
    for (int64_t i = 0; i < n; i++) {
      const int unroll = is_wide ? 2 : 4, which = i % (threads * unroll) / threads;
      const uint64_t thread = i % threads, call = i / (threads * unroll);
      if (is_whole) {
        const uint64_t one = is_wide ? (uint64_t)word(thread, call, 2 * which) << 32 | word(thread, call, 2 * which + 1) : word(thread, call, which);
        drawn.data_ptr<int64_t>()[i] = one % range + base;
        continue;
      }
      float& value = drawn.data_ptr<float>()[i];
      if (is_normal) {
        const float s = std::sqrt(-2 * std::log(uniform(word(thread, call, which & 2)))), v = uniform(word(thread, call, which | 1)) * (float)(2 * M_PI);
        value = s * (which & 1 ? std::cos(v) : std::sin(v)) * b + a;
      } else if (chances.defined()) {
        value = uniform(word(i / 4, 0, i % 4)) <= chances.data_ptr<float>()[i];
      } else {
        const float u = uniform(word(thread, call, which));
        value = is_mask ? u < (float)a : name == "aten::exponential_" ? -std::log(u) / a : u * (float)(b - a) + a;
        if (name == "aten::uniform_" && value >= b) value = a;
      }
    }
    const Tensor result = plain_on_cpu(to);
    result.as_strided({n}, {1}).copy_(drawn);
    return result;
  }
};

}  // namespace batchfit
