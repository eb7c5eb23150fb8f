// Matrix products by oneDNN, for tools/gemm.py: reads lines
//
//	f32|bf16 NT|NN|TN M N K milliseconds
//
// and answers each with the least seconds of a product (M x N, sums over K) in
// that time: the better of the matmul primitive on plain row-major operands
// (as a training step has them) and, for f32, of dnnl_sgemm. TN has f32 results,
// as gradients of weights do.
//
//	g++ -O2 -I INCLUDE tools/onednn.cc -L LIB -ldnnl -Wl,-rpath,LIB -o onednn
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dnnl.h"
#include "dnnl.hpp"

using namespace dnnl;
using dims = memory::dims;

static double now() {
	using namespace std::chrono;
	return duration<double>(steady_clock::now().time_since_epoch()).count();
}

// least seconds of f within a time, after two calls that do not count.
template <class F> static double best(double limit, F f) {
	double least = 1e9;
	f(), f();
	for (double end = now() + limit; now() < end;) {
		double start = now();
		f();
		double s = now() - start;
		if (s < least) least = s;
	}
	return least;
}

static void *operand(size_t bytes) {
	void *p = aligned_alloc(4096, (bytes + 4095) & ~size_t(4095));
	uint16_t *w = (uint16_t *)p; // small numbers, as bf16 and as f32
	for (size_t i = 0; i < bytes / 2; i++) w[i] = 0x3C24 + (i * 7919) % 0x229;
	return p;
}

int main() {
	engine eng(engine::kind::cpu, 0);
	stream s(eng);
	char type[8], form[8];
	long m, n, k, ms;
	while (scanf("%7s %7s %ld %ld %ld %ld", type, form, &m, &n, &k, &ms) == 6) {
		bool half = !strcmp(type, "bf16"), ta = form[0] == 'T', tb = form[1] == 'T';
		auto t = half ? memory::data_type::bf16 : memory::data_type::f32;
		auto out = ta ? memory::data_type::f32 : t;
		size_t size = half ? 2 : 4;
		void *a = operand(size * m * k), *b = operand(size * k * n), *c = operand(4 * m * n);
		memory::desc ad({m, k}, t, ta ? dims{1, m} : dims{k, 1});
		memory::desc bd({k, n}, t, tb ? dims{1, k} : dims{n, 1});
		memory::desc cd({m, n}, out, dims{n, 1});
		matmul product(matmul::primitive_desc(eng, ad, bd, cd));
		memory am(ad, eng, a), bm(bd, eng, b), cm(cd, eng, c);
		std::unordered_map<int, memory> args{{DNNL_ARG_SRC, am}, {DNNL_ARG_WEIGHTS, bm}, {DNNL_ARG_DST, cm}};
		double least = best(ms / 1e3, [&] { product.execute(s, args), s.wait(); });
		if (!half) {
			double other = best(ms / 1e3, [&] { dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, k, 1, (float *)a, ta ? m : k, (float *)b, tb ? k : n, 0, (float *)c, n); });
			if (other < least) least = other;
		}
		printf("%.9f\n", least);
		fflush(stdout);
		free(a), free(b), free(c);
	}
}
