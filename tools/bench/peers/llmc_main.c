// A main for llm.c's train_gpt2.c that trains from llmc_files.py's files and
// prints the line of JSON of tools/bench_peer.h. Built by llmc.sh with llm.c's
// own flags; includes its source, whose main TESTING leaves out.
#define TESTING
#include <sys/resource.h>

#include "train_gpt2.c"

static double Now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static long PeakKib(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

int main(void) {
  // llm.c prints to standard output: only our line may go there.
  FILE* out = fdopen(dup(1), "w");
  if (out == NULL || freopen("/dev/null", "w", stdout) == NULL) return 1;
  const char* started = getenv("TERRACE_BENCH_STARTED");
  const double start = started != NULL ? atof(started) : Now();
  const long baseline = PeakKib();
  GPT2 model;
  gpt2_build_from_checkpoint(&model, "model.bin");
  int sizes[5];  // batches, B, T, warmup, steps
  FILE* file = fopenCheck("tokens.bin", "rb");
  freadCheck(sizes, sizeof(int), 5, file);
  const size_t each = (size_t)sizes[1] * (size_t)sizes[2];
  const size_t all = (size_t)sizes[0] * each;
  int* ids = mallocCheck(all * sizeof(int));
  int* labels = mallocCheck(all * sizeof(int));
  freadCheck(ids, sizeof(int), all, file);
  freadCheck(labels, sizeof(int), all, file);
  fcloseCheck(file);
  float rates[5];  // lr, beta1, beta2, eps, weight_decay
  file = fopenCheck("rates.bin", "rb");
  freadCheck(rates, sizeof(float), 5, file);
  fcloseCheck(file);
  const int steps = sizes[3] + sizes[4];
  double* times = mallocCheck((size_t)steps * sizeof(double));
  double first = 0;
  fprintf(out, "{\"name\": \"llm.c\", \"losses\": [");
  for (int step = 0; step < steps; ++step) {
    const double begin = Now();
    const size_t at = (size_t)(step % sizes[0]) * each;
    gpt2_forward(&model, ids + at, labels + at, sizes[1], sizes[2]);
    gpt2_zero_grad(&model);
    gpt2_backward(&model);
    gpt2_update(&model, rates[0], rates[1], rates[2], rates[3], rates[4],
                step + 1);
    times[step] = Now() - begin;
    if (step == 0) first = Now() - start;
    fprintf(out, "%s%.9g", step == 0 ? "" : ", ", model.mean_loss);
  }
  fprintf(out, "], \"step_s\": [");
  for (int step = sizes[3]; step < steps; ++step)
    fprintf(out, "%s%.6f", step == sizes[3] ? "" : ", ", times[step]);
  fprintf(out,
          "], \"peak_rss_bytes\": %ld, \"baseline_bytes\": %ld, "
          "\"startup_s\": %.6f}\n",
          PeakKib() * 1024, baseline * 1024, first);
  fclose(out);
  return 0;
}
