/* ort_engine.h - one engine of the ONNX Runtime backend, and what its graph must declare. */
#ifndef SPECC_ORT_ENGINE_H
#define SPECC_ORT_ENGINE_H
#include "backends/ort/ort_device.h"
#include <stdbool.h>

#define MAX_LAYERS 1024
#define EXPORT_AGAIN "export the graph again"

typedef struct engine {
  library *lib;
  OrtSession *session;
  OrtMemoryInfo *memory; /* "plain memory of the CPU" */
  ort_device *device;    /* NULL: the CPU computes and the caches are here */
  int32_t cache_type;    /* SPECC_CACHE_ */
  bool is_masked;        /* past_len is int64: the graph masks stale entries, it does not skip them */
  int32_t opener;        /* the process that loaded it: its threads live there */
  int32_t vocab, layers, kv_heads, head_dim, capacity, n_widths, widest;
  int32_t n_ids;             /* input ids are below it */
  int32_t hidden, hidden_in; /* columns of the output and of the input of that name, 0: none */
  int32_t widths[SPECC_MAX_WIDTHS];
  char (*names)[24]; /* [4 * layers]: past_k.i, past_v.i, present_k.i, present_v.i of layer i at 4 * i */
} engine;

/* ort_signature.c: compares the session's graph with what the engine says; notes whether it masks. */
int ort_signature(engine *e, const char *model);
/* Element type of the cache's tensors. */
ort_enum ort_cache_type(const engine *e);
/* A value of a graph has one name, so a head that reads `hidden` gives `hidden_next`. */
const char *ort_hidden_name(const engine *e);
#endif
