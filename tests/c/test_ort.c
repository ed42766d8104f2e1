/* test_ort.c - the ONNX Runtime backend on a graph with known answers: values, rollback, poison, threads,
 * refusals. SPECC_ENGINE_LIBRARY names libonnxruntime; SPECC_OLD_ENGINE a library built from old_engine.c
 * (optional). */
#include "expect.h"
#include "specc_judge.h"
#include "tiny_graph.h"
#include <pthread.h>
#include <unistd.h>

static const char *library, *graph;
static int ids[CAPACITY];
static double expected[CAPACITY][VOCAB];

static specc_ort_options options(void) {
  return (specc_ort_options){.model = graph,
      .library = library,
      .threads = 1,
      .vocab = VOCAB,
      .layers = LAYERS,
      .kv_heads = KV_HEADS,
      .head_dim = HEAD_DIM,
      .capacity = CAPACITY,
      .n_widths = 6,
      .widths = {1, 2, 3, 4, 5, WIDEST}};
}

static void fill(const specc_io *io, int past, int rows) {
  for (int i = 0; i < rows; i++)
    io->input_ids[i] = ids[past + i], io->position[i] = past + i, io->logit_rows[i] = i;
  *io->past_len = past;
}

static int feed(const specc_backend *b, void *cache, const specc_io *io, int past, int rows) {
  fill(io, past, rows);
  return b->run(cache, rows, rows);
}

static bool near_expected(const float *row, int position) {
  for (int i = 0; i < VOCAB; i++)
    if (!(fabs((double)row[i] - expected[position][i]) < 1e-3)) return false;
  return true;
}

/* Every position, read in calls of every listed width, gives the graph's answer. */
static void test_values(const specc_backend *b) {
  for (int w = 0; w < b->n_widths; w++) {
    void *cache;
    specc_io io;
    int rows = b->widths[w];
    if (!EXPECT_OK(b->open(b->self, &cache, &io))) return;
    for (int past = 0; past + rows <= CAPACITY; past += rows) {
      EXPECT_OK(feed(b, cache, &io, past, rows));
      for (int i = 0; i < rows; i++) EXPECT(near_expected(io.logits + i * VOCAB, past + i));
    }
    b->close(cache);
  }
}

static void test_prefill(const specc_backend *b) {
  void *cache;
  specc_io io;
  if (!EXPECT_OK(b->open(b->self, &cache, &io))) return;
  fill(&io, 0, WIDEST);
  io.logit_rows[0] = WIDEST - 1;
  EXPECT_OK(b->run(cache, WIDEST, 1));
  EXPECT(near_expected(io.logits, WIDEST - 1));
  EXPECT_OK(feed(b, cache, &io, WIDEST, 5));
  EXPECT(near_expected(io.logits + 4 * VOCAB, WIDEST + 4));
  b->close(cache);
}

/* R48: past and present are one buffer. After other tokens were fed and rolled back, and the slots behind
 * were poisoned, the same call gives the same bits. */
static void test_rollback(const specc_backend *b) {
  static const float values[] = {NAN, INFINITY, 1e38f, -1e38f, 0.0f};
  void *cache;
  specc_io io;
  float before[5 * VOCAB];
  if (!EXPECT_OK(b->open(b->self, &cache, &io))) return;
  EXPECT_OK(feed(b, cache, &io, 0, WIDEST));
  EXPECT_OK(feed(b, cache, &io, WIDEST, 5));
  memcpy(before, io.logits, sizeof before);
  for (int i = 0; i < 5; i++) {
    fill(&io, WIDEST, 5);
    for (int j = 0; j < 5; j++) io.input_ids[j] = (i + 7 * j) % VOCAB;
    EXPECT_OK(b->run(cache, 5, 5));
    EXPECT_OK(b->poison(cache, WIDEST, values[i]));
    EXPECT_OK(feed(b, cache, &io, WIDEST, 5));
    EXPECT(!memcmp(before, io.logits, sizeof before));
  }
  EXPECT_OK(b->poison(cache, WIDEST - 1, NAN)); /* poison in a slot that is read changes the result */
  EXPECT_OK(feed(b, cache, &io, WIDEST, 5));
  EXPECT(memcmp(before, io.logits, sizeof before));
  EXPECT_ERROR(b->poison(cache, -1, 0), SPECC_E_ARGUMENT, "slot -1");
  EXPECT_ERROR(b->poison(cache, CAPACITY + 1, 0), SPECC_E_ARGUMENT, "slot 81");
  b->close(cache);
}

static void test_refused_calls(const specc_backend *b) {
  void *cache;
  specc_io io;
  if (!EXPECT_OK(b->open(b->self, &cache, &io))) return;
  fill(&io, 0, 5);
  EXPECT_ERROR(b->run(cache, 7, 7), SPECC_E_ARGUMENT, "7 rows");
  EXPECT_ERROR(b->run(cache, 5, 2), SPECC_E_ARGUMENT, "logits of 2");
  EXPECT_ERROR(b->run(cache, 0, 0), SPECC_E_ARGUMENT, "0 rows");
  EXPECT_ERROR(b->run(cache, -1, 1), SPECC_E_ARGUMENT, "-1 rows");
  const int32_t lengths[] = {-1, CAPACITY - 4, CAPACITY, INT32_MAX, INT32_MIN};
  for (int i = 0; i < 5; i++) {
    *io.past_len = lengths[i];
    EXPECT_ERROR(b->run(cache, 5, 5), SPECC_E_ARGUMENT, "does not fit");
  }
  fill(&io, 0, 5), io.input_ids[4] = VOCAB;
  EXPECT_ERROR(b->run(cache, 5, 5), SPECC_E_ARGUMENT, "token id");
  fill(&io, 0, 5), io.position[0] = -1;
  EXPECT_ERROR(b->run(cache, 5, 5), SPECC_E_ARGUMENT, "position");
  fill(&io, 0, 5), io.logit_rows[2] = 5;
  EXPECT_ERROR(b->run(cache, 5, 5), SPECC_E_ARGUMENT, "another row");
  EXPECT_OK(feed(b, cache, &io, 0, 5)); /* and the cache still works */
  EXPECT(near_expected(io.logits, 0));
  b->close(cache);
}

typedef struct worker {
  const specc_backend *b;
  int width, wrong;
} worker;

static void *work(void *argument) {
  worker *w = argument;
  void *cache;
  specc_io io;
  if (w->b->open(w->b->self, &cache, &io)) return w->wrong = 1000, NULL;
  for (int round = 0; round < 20; round++)
    for (int past = 0; past + w->width <= CAPACITY; past += w->width) {
      w->wrong += feed(w->b, cache, &io, past, w->width) != SPECC_OK;
      w->wrong += !near_expected(io.logits + (w->width - 1) * VOCAB, past + w->width - 1);
    }
  w->b->close(cache);
  return NULL;
}

static void test_threads(const specc_backend *b) {
  pthread_t threads[4];
  worker workers[4];
  for (int i = 0; i < 4; i++) {
    workers[i] = (worker){b, 2 + i, 0};
    pthread_create(&threads[i], NULL, work, &workers[i]);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
    EXPECT(workers[i].wrong == 0);
  }
}

/* ------------------------------------------------------------------ refusals */
static int try(specc_ort_options o) {
  specc_backend b;
  return specc_ort_backend(&o, &b);
}

static void test_libraries(const char *folder) {
  specc_ort_options o = options();
  char text[512];
  o.library = "/nowhere/libonnxruntime.so";
  EXPECT_ERROR(try(o), SPECC_E_ENGINE, "/nowhere/libonnxruntime.so");
  snprintf(text, sizeof text, "%s/not-a-library", folder), write_bytes(text, "x", 1);
  o.library = text;
  EXPECT_ERROR(try(o), SPECC_E_ENGINE, "not-a-library");
  o.library = "libm.so.6";
  EXPECT_ERROR(try(o), SPECC_E_ENGINE, "no OrtGetApiBase");
  o.library = getenv("SPECC_OLD_ENGINE");
  if (o.library) EXPECT_ERROR(try(o), SPECC_E_ENGINE, "1.19.2");
}

static void test_files(const char *folder, const weights *w) {
  specc_ort_options o = options();
  char path[512];
  o.model = path;
  snprintf(path, sizeof path, "%s/missing.onnx", folder);
  EXPECT_ERROR(try(o), SPECC_E_IO, "missing.onnx");
  snprintf(path, sizeof path, "%s/garbage.onnx", folder), write_bytes(path, "this is not a graph", 19);
  EXPECT_ERROR(try(o), SPECC_E_FORMAT, "garbage.onnx");
  snprintf(path, sizeof path, "%s/empty.onnx", folder), write_bytes(path, "", 0);
  EXPECT(try(o) != SPECC_OK);
  snprintf(path, sizeof path, "%s/bare.onnx", folder), write_graph(path, w, (variant){0});
  char data[600];
  snprintf(data, sizeof data, "%s.data", path), unlink(data);
  EXPECT(try(o) != SPECC_OK && strstr(specc_last_error(), "bare.onnx"));
}

static void test_signatures(const char *folder, const weights *w) {
  const struct {
    variant v;
    const char *says;
  } cases[] = {{{.rename_position = true}, "input positions is not one of"},
      {{.drop_last_output = true}, "output present_v.1 is missing"},
      {{.long_past_len = true}, "input past_len has 2 dimensions, not 1"},
      {{.extra_input = true}, "input mask is not one of"},
      {{.fixed_rows = true}, "input input_ids fixes dimension 1 to 5"}};
  specc_ort_options o = options();
  char path[512];
  o.model = path;
  snprintf(path, sizeof path, "%s/wrong.onnx", folder);
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    write_graph(path, w, cases[i].v);
    EXPECT_ERROR(try(o), SPECC_E_FORMAT, cases[i].says);
  }
  write_graph(path, w, (variant){.float_ids = true});
  EXPECT_ERROR(try(o), SPECC_E_FORMAT, "input position is of int32, not int64");
  o = options(), o.vocab = VOCAB + 1;
  EXPECT_ERROR(try(o), SPECC_E_FORMAT, "output logits has 50 in dimension 1, not 51");
  o = options(), o.capacity = CAPACITY - 1;
  EXPECT_ERROR(try(o), SPECC_E_FORMAT, "input past_k.0 has 80 in dimension 2, not 79");
  o = options(), o.layers = LAYERS + 1;
  EXPECT_ERROR(try(o), SPECC_E_FORMAT, "input past_k.2 is missing");
  o = options(), o.layers = LAYERS - 1;
  EXPECT_ERROR(try(o), SPECC_E_FORMAT, "input past_k.1 is not one of");
}

static void test_options(void) {
  specc_ort_options o = options();
  o.widths[2] = 2;
  EXPECT_ERROR(try(o), SPECC_E_ARGUMENT, "widths is 2");
  o = options(), o.n_widths = 25;
  EXPECT_ERROR(try(o), SPECC_E_ARGUMENT, "n_widths is 25");
  o = options(), o.capacity = WIDEST - 1;
  EXPECT_ERROR(try(o), SPECC_E_ARGUMENT, "capacity is 15");
  o = options(), o.layers = 0;
  EXPECT_ERROR(try(o), SPECC_E_ARGUMENT, "layers is 0");
  o = options(), o.model = NULL;
  EXPECT_ERROR(try(o), SPECC_E_ARGUMENT, "graph file");
}

static void test_engine(void) {
  specc_backend one, two;
  specc_ort_options o = options();
  if (!EXPECT_OK(specc_ort_backend(&o, &one)) || !EXPECT_OK(specc_ort_backend(&o, &two))) return;
  EXPECT(!strcmp(one.name, "ort") && one.version == two.version && one.vocab == VOCAB &&
         one.capacity == CAPACITY);
  test_values(&one);
  one.release(one.self);
  test_prefill(&two);
  test_rollback(&two);
  test_refused_calls(&two);
  test_threads(&two);
  two.release(two.self);
  if (EXPECT_OK(specc_ort_backend(&o, &one)))
    one.release(one.self); /* the library can be loaded again after its last release */
}

int main(void) {
  char folder[] = "/tmp/specc-test-XXXXXX", path[64], clean[80];
  library = getenv("SPECC_ENGINE_LIBRARY");
  if (!library) return printf("test_ort: skipped, SPECC_ENGINE_LIBRARY is not set\n"), SKIP;
  if (!mkdtemp(folder)) return 1;
  snprintf(path, sizeof path, "%s/tiny.onnx", folder);
  graph = path;
  weights *w = make_weights();
  for (int i = 0; i < CAPACITY; i++) ids[i] = (7 * i * i + 3 * i + 1) % VOCAB;
  reference(w, ids, CAPACITY, &expected[0][0]);
  write_graph(graph, w, (variant){0});
  test_engine();
  test_options();
  test_libraries(folder);
  test_files(folder, w);
  test_signatures(folder, w);
  free(w);
  snprintf(clean, sizeof clean, "rm -r %s", folder);
  EXPECT(system(clean) == 0);
  return finish("test_ort");
}
