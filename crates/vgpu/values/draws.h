// Random numbers as a card draws them, from the seed and the offset of the script's own generator: masks, lengths and boxes that a script draws on
// the GPU then have the sizes that they have there. The order is that of PyTorch's kernels (ATen/native/cuda/DistributionTemplates.h).
#pragma once
#include "choices.h"
#include <ATen/core/PhiloxRNGEngine.h>

// src/runtime/devices.rs.
extern "C" int cudaDeviceGetAttribute(int* value, int attribute, int device);

namespace batchfit {

// Fills what an operator of this name draws into, before the real kernel moves the generator on; nothing where it draws otherwise.
inline std::optional<Stack> draw_as_card(const std::string& name, const Stack& args) {
  static const std::set<std::string> names = {"aten::random_", "aten::uniform_", "aten::normal_", "aten::bernoulli_", "aten::exponential_"};
  if (!names.count(name)) return {};
  const Tensor& to = args[0].toTensor();
  const bool is_whole = name == "aten::random_", is_normal = name == "aten::normal_", is_mask = name == "aten::bernoulli_";
  const Tensor given = is_mask && args[1].isTensor() ? args[1].toTensor() : Tensor();
  if (!to.is_non_overlapping_and_dense() || (given.defined() && !(to.is_contiguous() && given.sizes() == to.sizes()))) return {};
  if (is_whole ? args.size() < 3 || !args[args.size() - 2].isInt() : to.scalar_type() == at::kDouble) return {};
  uint64_t seed, offset;
  try {
    const at::Generator generator = args.back().isNone() ? at::globalContext().defaultGenerator(to.device()) : args.back().toGenerator();
    seed = generator.current_seed(), offset = generator.get_offset();
  } catch (const std::exception&) {
    return {};  // while a graph is captured
  }
  constexpr int THREADS_PER_SM = 39, SMS = 16;  // cudaDeviceAttr
  int threads_per_sm = 2048, sms = 1;
  cudaDeviceGetAttribute(&threads_per_sm, THREADS_PER_SM, to.device().index()), cudaDeviceGetAttribute(&sms, SMS, to.device().index());
  const int64_t n = to.numel(), threads = 256 * std::min<int64_t>((n + 255) / 256, sms * (threads_per_sm / 256));
  const int64_t base = is_whole && args.size() > 3 ? args[1].toInt() : 0;
  const uint64_t range = is_whole ? args[args.size() - 2].toInt() - base : 1;
  const int unroll = range >= 1ull << 28 ? 2 : 4;
  const Tensor chances = given.defined() ? on_cpu(given).to(at::kFloat).contiguous() : Tensor();
  const auto number = [&](size_t i) { return !is_whole && i + 1 < args.size() && args[i].isScalar() ? args[i].toScalar().toDouble() : 0.0; };
  const double a = number(1), b = number(2);
  const Tensor drawn = at::empty({n}, is_whole ? at::kLong : at::kFloat);
  for (int64_t i = 0; i < n; i++) {
    const int which = i % (threads * unroll) / threads;
    const auto word = [&](int which) {
      at::Philox4_32 engine(seed, chances.defined() ? i / 4 : i % threads, offset / 4 + (chances.defined() ? 0 : i / (threads * unroll)));
      while (which--) engine();
      return engine();
    };
    const auto uniform = [&](int which) { return std::fma((float)word(which), 0x1p-32f, 0x1p-33f); };
    if (is_whole) {
      drawn.data_ptr<int64_t>()[i] = (unroll == 2 ? (uint64_t)word(2 * which) << 32 | word(2 * which + 1) : word(which)) % range + base;
      continue;
    }
    float& value = drawn.data_ptr<float>()[i];
    if (is_normal) {
      const float s = std::sqrt(-2 * std::log(uniform(which & 2))), v = uniform(which | 1) * (float)(2 * M_PI);
      value = s * (which & 1 ? std::cos(v) : std::sin(v)) * b + a;
    } else if (chances.defined()) {
      value = uniform(i % 4) <= chances.data_ptr<float>()[i];
    } else {
      const float u = uniform(which);
      value = is_mask ? u < (float)a : name == "aten::exponential_" ? -std::log(u) / a : u * (float)(b - a) + a;
      if (name == "aten::uniform_" && value >= b) value = a;
    }
  }
  on_cpu(to).as_strided({n}, {1}).copy_(drawn);
  return Stack{on_cpu(to)};
}

}  // namespace batchfit
