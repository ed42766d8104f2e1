/* tiny_graph.h - writes a two-layer ONNX graph with specc's signature, and computes what it must give.
 *
 * hidden = embed[id] + where[position]; per layer hidden += attention(hidden Wq, hidden Wk, hidden Wv);
 * logits = hidden Whead. embed lies in an external file beside the graph. The writer knows just the part of
 * ONNX's protobuf that this needs. */
#ifndef SPECC_TINY_GRAPH_H
#define SPECC_TINY_GRAPH_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  VOCAB = 50,
  LAYERS = 2,
  HEADS = 4,
  KV_HEADS = 2,
  HEAD_DIM = 16,
  HIDDEN = HEADS * HEAD_DIM,
  KV = KV_HEADS * HEAD_DIM,
  CAPACITY = 80,
  WIDEST = 16
};

typedef struct weights {
  float embed[VOCAB * HIDDEN], where[CAPACITY * HIDDEN], head[HIDDEN * VOCAB];
  float q[LAYERS][HIDDEN * HIDDEN], k[LAYERS][HIDDEN * KV], v[LAYERS][HIDDEN * KV];
} weights;

typedef struct variant { /* all zero: a right graph */
  bool rename_position, drop_last_output, long_past_len, extra_input, fixed_rows, float_ids;
} variant;

/* ------------------------------------------------------------------ protobuf */
typedef struct bytes {
  unsigned char *p;
  size_t n, size;
} bytes;

static void put(bytes *b, const void *data, size_t n) {
  if (b->n + n > b->size) b->p = realloc(b->p, b->size = 2 * (b->n + n));
  if (n) memcpy(b->p + b->n, data, n);
  b->n += n;
}

static void put_varint(bytes *b, uint64_t x) {
  for (; x > 127; x >>= 7) put(b, &(unsigned char){(unsigned char)(x | 128)}, 1);
  put(b, &(unsigned char){(unsigned char)x}, 1);
}

static void put_int(bytes *b, int field, uint64_t x) {
  put_varint(b, (uint64_t)field << 3), put_varint(b, x);
}
static void put_data(bytes *b, int field, const void *data, size_t n) {
  put_varint(b, (uint64_t)field << 3 | 2), put_varint(b, n), put(b, data, n);
}
static void put_text(bytes *b, int field, const char *text) {
  put_data(b, field, text, strlen(text));
}
static void put_message(bytes *b, int field, bytes *message) {
  put_data(b, field, message->p, message->n), free(message->p), *message = (bytes){0};
}

/* ------------------------------------------------------------------ pieces of a graph */
/* dims: 0 is a free dimension called "rows". */
static void put_value(bytes *graph, int field, const char *name, int type, int rank, const int *dims) {
  bytes shape = {0}, tensor = {0}, kind = {0}, value = {0};
  for (int i = 0; i < rank; i++) {
    bytes dim = {0};
    if (dims[i])
      put_int(&dim, 1, (uint64_t)dims[i]);
    else
      put_text(&dim, 2, "rows");
    put_message(&shape, 1, &dim);
  }
  put_int(&tensor, 1, (uint64_t)type);
  put_message(&tensor, 2, &shape);
  put_message(&kind, 1, &tensor);
  put_text(&value, 1, name);
  put_message(&value, 2, &kind);
  put_message(graph, field, &value);
}

static bytes tensor_head(const char *name, int type, int rank, const int *dims) {
  bytes t = {0};
  for (int i = 0; i < rank; i++) put_int(&t, 1, (uint64_t)dims[i]);
  put_int(&t, 2, (uint64_t)type);
  put_text(&t, 8, name);
  return t;
}

static void put_weight(
    bytes *graph, const char *name, int type, int rank, const int *dims, const void *data, size_t n) {
  bytes t = tensor_head(name, type, rank, dims);
  put_data(&t, 9, data, n);
  put_message(graph, 5, &t);
}

static void put_matrix(bytes *graph, const char *name, int rows, int columns, const float *data) {
  put_weight(graph, name, 1, 2, (int[]){rows, columns}, data, sizeof(float) * (size_t)rows * (size_t)columns);
}

static void put_external(bytes *graph, const char *name, int rows, int columns, const char *file) {
  bytes t = tensor_head(name, 1, 2, (int[]){rows, columns}), entry = {0};
  put_text(&entry, 1, "location"), put_text(&entry, 2, file);
  put_message(&t, 13, &entry);
  put_int(&t, 14, 1);
  put_message(graph, 5, &t);
}

typedef struct attribute {
  const char *name;
  int value;
} attribute;

/* inputs and outputs: names with spaces between. */
static void put_node(bytes *graph, const char *op, const char *domain, const char *inputs,
    const char *outputs, int n, const attribute *attributes) {
  bytes node = {0};
  for (int field = 1; field <= 2; field++)
    for (const char *p = field == 1 ? inputs : outputs; *p;) {
      size_t length = strcspn(p, " ");
      put_data(&node, field, p, length);
      p += length + (p[length] == ' ');
    }
  put_text(&node, 4, op);
  for (int i = 0; i < n; i++) {
    bytes a = {0};
    put_text(&a, 1, attributes[i].name), put_int(&a, 3, (uint64_t)attributes[i].value), put_int(&a, 20, 2);
    put_message(&node, 5, &a);
  }
  put_text(&node, 7, domain);
  put_message(graph, 1, &node);
}

/* ------------------------------------------------------------------ the graph */
static void put_layer(bytes *g, const weights *w, int i) {
  char in[160], out[96], name[3][16];
  const float *data[3] = {w->q[i], w->k[i], w->v[i]};
  for (int j = 0; j < 3; j++) {
    snprintf(name[j], sizeof name[j], "w%c%d", "qkv"[j], i);
    put_matrix(g, name[j], HIDDEN, j ? KV : HIDDEN, data[j]);
    snprintf(in, sizeof in, "x%d %s", i, name[j]), snprintf(out, sizeof out, "%c%d", "qkv"[j], i);
    put_node(g, "MatMul", "", in, out, 0, NULL);
  }
  snprintf(in, sizeof in, "q%d k%d v%d past_k.%d past_v.%d seqlens total", i, i, i, i, i);
  snprintf(out, sizeof out, "a%d present_k.%d present_v.%d", i, i, i);
  put_node(g, "GroupQueryAttention", "com.microsoft", in, out, 2,
      (attribute[]){{"num_heads", HEADS}, {"kv_num_heads", KV_HEADS}});
  snprintf(in, sizeof in, "x%d a%d", i, i), snprintf(out, sizeof out, "x%d", i + 1);
  put_node(g, "Add", "", in, out, 0, NULL);
}

static void put_nodes(bytes *g, const weights *w, const char *position) {
  char gather[64], last[64];
  snprintf(gather, sizeof gather, "where %s", position),
      snprintf(last, sizeof last, "x%d logit_rows", LAYERS);
  put_weight(g, "one", 6, 0, NULL, &(int32_t){1}, 4);
  put_weight(g, "zero", 7, 1, (int[]){1}, &(int64_t){0}, 8);
  put_matrix(g, "where", CAPACITY, HIDDEN, w->where);
  put_matrix(g, "head", HIDDEN, VOCAB, w->head);
  put_node(g, "Shape", "", "input_ids", "shape", 2, (attribute[]){{"start", 1}, {"end", 2}});
  put_node(g, "Cast", "", "shape", "n_rows", 1, (attribute[]){{"to", 6}});
  put_node(g, "Add", "", "past_len n_rows", "lengths", 0, NULL);
  put_node(g, "Sub", "", "lengths one", "seqlens", 0, NULL);
  put_node(g, "Squeeze", "", "lengths", "total", 0, NULL);
  put_node(g, "Gather", "", "embed input_ids", "e", 0, NULL);
  put_node(g, "Gather", "", gather, "p", 0, NULL);
  put_node(g, "Add", "", "e p", "x0", 0, NULL);
  for (int i = 0; i < LAYERS; i++) put_layer(g, w, i);
  put_node(g, "Gather", "", last, "picked", 1, (attribute[]){{"axis", 1}});
  put_node(g, "Squeeze", "", "picked zero", "wanted", 0, NULL);
  put_node(g, "MatMul", "", "wanted head", "logits", 0, NULL);
}

static void put_signature(bytes *g, const variant *v, const char *position) {
  int rows = v->fixed_rows ? 5 : 0;
  const int cache[4] = {1, KV_HEADS, CAPACITY, HEAD_DIM};
  put_value(g, 11, "input_ids", 7, 2, (int[]){1, rows});
  put_value(g, 11, "past_len", 6, v->long_past_len ? 2 : 1, (int[]){1, 1});
  put_value(g, 11, position, v->float_ids ? 6 : 7, 2, (int[]){1, rows});
  put_value(g, 11, "logit_rows", 7, 1, (int[]){0});
  put_value(g, 12, "logits", 1, 2, (int[]){0, VOCAB});
  if (v->extra_input) put_value(g, 11, "mask", 1, 1, (int[]){1});
  for (int i = 0; i < 2 * LAYERS; i++) {
    char name[32];
    snprintf(name, sizeof name, "past_%c.%d", "kv"[i % 2], i / 2);
    put_value(g, 11, name, 1, 4, cache);
    snprintf(name, sizeof name, "present_%c.%d", "kv"[i % 2], i / 2);
    if (i + 1 < 2 * LAYERS || !v->drop_last_output) put_value(g, 12, name, 1, 4, cache);
  }
}

static void put_opset(bytes *model, const char *domain, int version) {
  bytes o = {0};
  put_text(&o, 1, domain), put_int(&o, 2, (uint64_t)version);
  put_message(model, 8, &o);
}

static void write_bytes(const char *path, const void *data, size_t n) {
  FILE *f = fopen(path, "wb");
  if (!f || fwrite(data, 1, n, f) != n) abort();
  fclose(f);
}

static void fill_random(float *x, size_t n, float scale, uint32_t *state) {
  for (size_t i = 0; i < n; i++) {
    *state = *state * 1664525u + 1013904223u;
    x[i] = scale * ((float)(*state >> 8) / 8388608.0f - 1.0f);
  }
}

static weights *make_weights(void) {
  weights *w = calloc(1, sizeof *w);
  uint32_t state = 1;
  fill_random(w->embed, VOCAB * HIDDEN, 1, &state), fill_random(w->where, CAPACITY * HIDDEN, 1, &state),
      fill_random(w->head, HIDDEN * VOCAB, 0.3f, &state);
  for (int i = 0; i < LAYERS; i++)
    fill_random(w->q[i], HIDDEN * HIDDEN, 0.3f, &state), fill_random(w->k[i], HIDDEN * KV, 0.3f, &state),
        fill_random(w->v[i], HIDDEN * KV, 0.3f, &state);
  return w;
}

/* Writes path and path.data. */
static void write_graph(const char *path, const weights *w, variant v) {
  const char *position = v.rename_position ? "positions" : "position",
             *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
  char data[4096];
  bytes graph = {0}, model = {0};
  snprintf(data, sizeof data, "%s.data", base);
  put_external(&graph, "embed", VOCAB, HIDDEN, data);
  put_nodes(&graph, w, position);
  put_text(&graph, 2, "tiny");
  put_signature(&graph, &v, position);
  put_int(&model, 1, 10);
  put_message(&model, 7, &graph);
  put_opset(&model, "", 20), put_opset(&model, "com.microsoft", 1);
  write_bytes(path, model.p, model.n);
  free(model.p);
  snprintf(data, sizeof data, "%s.data", path);
  write_bytes(data, w->embed, sizeof w->embed);
}

/* ------------------------------------------------------------------ what it must give */
static void multiply(const double *x, const float *matrix, int inputs, int outputs, double *y) {
  for (int j = 0; j < outputs; j++) {
    y[j] = 0;
    for (int i = 0; i < inputs; i++) y[j] += x[i] * (double)matrix[i * outputs + j];
  }
}

/* One head over n keys, kv_stride apart; adds to out [HEAD_DIM]. */
static void attend(const double *q, const double *k, const double *v, int n, double *out) {
  double score[CAPACITY], top = -INFINITY, sum = 0;
  for (int s = 0; s < n; s++) {
    score[s] = 0;
    for (int d = 0; d < HEAD_DIM; d++) score[s] += q[d] * k[s * KV + d] / sqrt((double)HEAD_DIM);
    top = fmax(top, score[s]);
  }
  for (int s = 0; s < n; s++) sum += score[s] = exp(score[s] - top);
  for (int s = 0; s < n; s++)
    for (int d = 0; d < HEAD_DIM; d++) out[d] += score[s] / sum * v[s * KV + d];
}

/* logits [n][VOCAB] after each of n ids. */
static inline void reference(const weights *w, const int *ids, int n, double *logits) {
  static double x[CAPACITY][HIDDEN], k[CAPACITY * KV], v[CAPACITY * KV], q[HIDDEN];
  for (int t = 0; t < n; t++)
    for (int i = 0; i < HIDDEN; i++)
      x[t][i] = (double)w->embed[ids[t] * HIDDEN + i] + (double)w->where[t * HIDDEN + i];
  for (int layer = 0; layer < LAYERS; layer++) {
    for (int t = 0; t < n; t++)
      multiply(x[t], w->k[layer], HIDDEN, KV, k + t * KV),
          multiply(x[t], w->v[layer], HIDDEN, KV, v + t * KV);
    for (int t = 0; t < n; t++) {
      multiply(x[t], w->q[layer], HIDDEN, HIDDEN, q);
      for (int h = 0; h < HEADS; h++) {
        int kv = h / (HEADS / KV_HEADS) * HEAD_DIM;
        attend(q + h * HEAD_DIM, k + kv, v + kv, t + 1, x[t] + h * HEAD_DIM);
      }
    }
  }
  for (int t = 0; t < n; t++) multiply(x[t], w->head, HIDDEN, VOCAB, logits + t * VOCAB);
}
#endif
