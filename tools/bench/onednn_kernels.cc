// fp32 products of a Linear by every kernel that oneDNN offers, in turn: the
// measurements behind WantsPackedB (kernels/cpu/onednn.cc).
//
//   OMP_NUM_THREADS=2 bazel-bin/tools/bench/onednn_kernels ROUNDS M[xNxK]...
//   ... 15 256 1024 64x32x32
//
// M alone stands for the four (N, K) of GPT-2 124M. For each: forward
// (x W^T + b), dx (dy W) and dw (dy^T x); a kernel's median GFLOP/s over the
// rounds, the best in brackets, and the median over the first kernel's, which
// is oneDNN's own choice.
#include <cstdio>

#if TERRACE_HAVE_DNNL
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <oneapi/dnnl/dnnl.hpp>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::memory;

struct Kernel {
  std::string name;
  dnnl::matmul primitive;
  memory scratch;
  std::vector<double> seconds = {};
};

struct Product {
  const char* what;
  int64_t m, n, k;
  std::unordered_map<int, memory> args = {};
  std::vector<Kernel> kernels = {};
};

memory::desc Matrix(int64_t rows, int64_t columns, bool transposed) {
  return {{rows, columns},
          memory::data_type::f32,
          transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

memory Filled(const memory::desc& desc, const dnnl::engine& engine) {
  memory filled(desc, engine);
  std::fill_n(static_cast<float*>(filled.get_data_handle()),
              desc.get_size() / sizeof(float), 0.25f);
  return filled;
}

Product Make(const dnnl::engine& engine, const char* what, int64_t m, int64_t n,
             int64_t k) {
  const std::string_view kind = what;
  const memory::desc a = Matrix(m, k, kind == "dw"),
                     b = Matrix(k, n, kind == "forward"),
                     c = Matrix(m, n, false), bias = Matrix(1, n, false);
  Product product{what, m, n, k};
  product.args = {{DNNL_ARG_SRC, Filled(a, engine)},
                  {DNNL_ARG_WEIGHTS, Filled(b, engine)},
                  {DNNL_ARG_DST, Filled(c, engine)}};
  const bool biased = kind == "forward";
  if (biased) product.args.emplace(DNNL_ARG_BIAS, Filled(bias, engine));
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  dnnl::matmul::primitive_desc desc =
      biased ? dnnl::matmul::primitive_desc(engine, a, b, bias, c, attr)
             : dnnl::matmul::primitive_desc(engine, a, b, c, attr);
#else
  // next_impl reads it again.
  const dnnl::matmul::desc asked =
      biased ? dnnl::matmul::desc(a, b, bias, c) : dnnl::matmul::desc(a, b, c);
  dnnl::matmul::primitive_desc desc(asked, attr, engine);
#endif
  do {
    const std::string name = desc.impl_info_str();
    if (name.starts_with("ref")) break;
    product.kernels.push_back(
        {name, dnnl::matmul(desc), memory(desc.scratchpad_desc(), engine)});
  } while (desc.next_impl());
  return product;
}

void Run(Product& product, Kernel& kernel, dnnl::stream& stream) {
  product.args[DNNL_ARG_SCRATCHPAD] = kernel.scratch;
  kernel.primitive.execute(stream, product.args);
  stream.wait();
}

void Print(Product& product) {
  std::printf("%-7s M %5lld N %5lld K %5lld:", product.what,
              static_cast<long long>(product.m),
              static_cast<long long>(product.n),
              static_cast<long long>(product.k));
  const double flop = 2e-9 * static_cast<double>(product.m) *
                      static_cast<double>(product.n) *
                      static_cast<double>(product.k);
  double first = 0;
  for (Kernel& kernel : product.kernels) {
    std::ranges::sort(kernel.seconds);
    const double median = flop / kernel.seconds[kernel.seconds.size() / 2];
    if (first == 0) first = median;
    std::printf("  %s %.0f (%.0f) x%.2f", kernel.name.c_str(), median,
                flop / kernel.seconds.front(), median / first);
  }
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 2 ? std::atoi(argv[1]) : 0;
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  std::vector<Product> products;
  for (int i = 2; i < argc; ++i) {
    long long m = 0, n = 0, k = 0;
    const int read = std::sscanf(argv[i], "%lldx%lldx%lld", &m, &n, &k);
    std::vector<std::pair<int64_t, int64_t>> shapes = {
        {2304, 768}, {768, 768}, {3072, 768}, {768, 3072}};
    if (read == 3) shapes = {{n, k}};
    if ((read != 1 && read != 3) || m < 1 || (read == 3 && (n < 1 || k < 1)))
      shapes.clear();
    for (const auto& [columns, depth] : shapes) {
      products.push_back(Make(engine, "forward", m, columns, depth));
      products.push_back(Make(engine, "dx", m, depth, columns));
      products.push_back(Make(engine, "dw", columns, depth, m));
    }
  }
  if (rounds < 1 || products.empty()) {
    std::fprintf(
        stderr, "usage: onednn_kernels ROUNDS M[xNxK]..., positive integers\n");
    return 2;
  }
  for (int round = -1; round < rounds; ++round) {
    for (Product& product : products) {
      for (Kernel& kernel : product.kernels) {
        const auto begin = std::chrono::steady_clock::now();
        Run(product, kernel, stream);
        const std::chrono::duration<double> spent =
            std::chrono::steady_clock::now() - begin;
        if (round >= 0) kernel.seconds.push_back(spent.count());  // one warms
      }
    }
  }
  for (Product& product : products) Print(product);
}

#else

int main() {
  std::fprintf(stderr, "onednn_kernels: this build has no oneDNN\n");
  return 2;
}

#endif
