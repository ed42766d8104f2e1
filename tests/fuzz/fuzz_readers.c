/* fuzz_readers.c - any bytes go into the JSON and id-to-bytes readers; what they accept must hold together.
 *
 * With libFuzzer: clang -fsanitize=fuzzer,address,undefined -DSPECC_LIBFUZZER ... Otherwise a program that
 * changes its own seeds: fuzz_readers [tries, 200000] [seed, 1]. A failing input is told by its try: the run
 * is the same every time. */
#include "core/io/files.h"
#include "core/io/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int count_values(const json *value, int depth) {
  int n = 1, members = 0;
  if (depth > JSON_MAX_DEPTH) abort();
  if (value->kind == JSON_STRING && strlen(value->text) != (size_t)value->n) abort();
  for (const json *v = value->first; v; v = v->next, members++) {
    if ((value->kind == JSON_OBJECT) != (v->key != NULL)) abort();
    n += count_values(v, depth + 1);
  }
  if (value->kind >= JSON_ARRAY && members != value->n) abort();
  return n;
}

/* A string that was read survives being written and read again. */
static void check_quote(const json *value) {
  char *out = malloc(12 * (size_t)value->n + 3);
  json_document again;
  size_t n = json_quote(value->text, out, 12 * (size_t)value->n + 3);
  if (json_read("again", out, n, &again) || strcmp(again.root->text, value->text)) abort();
  json_free(&again);
  free(out);
}

static void check_json(const uint8_t *data, size_t n) {
  json_document document;
  if (json_read("input", (const char *)data, n, &document)) {
    if (document.root || document.arena) abort();
    return;
  }
  count_values(document.root, 0);
  if (document.root->kind == JSON_STRING) check_quote(document.root);
  json_free(&document);
}

static void check_table(const uint8_t *data, size_t n) {
  id_bytes table;
  if (id_bytes_read("input", data, n, &table)) return;
  uint32_t sum = 0;
  for (uint32_t i = 0; i < table.offsets[table.n]; i++) sum += table.bytes[i];
  if (table.offsets[0] != 0 || sum > 255u * table.offsets[table.n]) abort();
  free(table.offsets);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
  uint8_t *own = malloc(n ? n : 1); /* its very end is what a sanitizer watches */
  if (n) memcpy(own, data, n);
  check_json(own, n);
  check_table(own, n);
  free(own);
  return 0;
}

#ifndef SPECC_LIBFUZZER
  #define SEED(text) {text, sizeof text - 1}
static const struct {
  const char *text;
  size_t n;
} seeds[] = {SEED("{\"digest\": \"00\", \"format\": 1, \"files\": [{\"path\": \"target.onnx\", \"bytes\": "
                  "1}], \"plan\": {\"k\": 4}}"),
    SEED("[[1, -2.5e-3, 1e308], {\"a\": true, \"b\": null}, \"\\u00e9\\ud83d\\ude00\\n\"]"),
    SEED("\"\xc3\xa9\xf0\x9f\x98\x80 \\\\ \\\" text\""),
    SEED("SPCB\1\0\0\0\2\0\0\0\0\0\0\0\1\0\0\0\3\0\0\0abc")};

static uint32_t next(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33);
}

static size_t change(uint8_t *data, size_t n, uint64_t *state) {
  static const char tokens[] = "{}[]\",:\\u0123456789dDcC8eE+-.tfn \xc3\xed\xf4\xff";
  size_t at = n ? next(state) % n : 0;
  switch (next(state) % 5) {
  case 0:
    if (n) data[at] = (uint8_t)next(state);
    return n;
  case 1:
    if (n) data[at] = (uint8_t)tokens[next(state) % (sizeof tokens - 1)];
    return n;
  case 2:
    return next(state) % 8 ? n : at;
  case 3:
    if (n)
      memmove(data + at + 1, data + at, n - at),
          data[at] = (uint8_t)tokens[next(state) % (sizeof tokens - 1)];
    return n ? n + 1 : n;
  default:
    if (n) memmove(data + at, data + at + 1, n - at - 1);
    return n ? n - 1 : n;
  }
}

int main(int argc, char **argv) {
  long tries = argc > 1 ? atol(argv[1]) : 200000;
  uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
  uint8_t data[256];
  for (long i = 0; i < tries; i++) {
    size_t which = next(&state) % 4, n = seeds[which].n;
    memcpy(data, seeds[which].text, n);
    for (uint32_t k = next(&state) % 6; k > 0; k--) n = change(data, n, &state);
    LLVMFuzzerTestOneInput(data, n);
  }
  printf("fuzz_readers: %ld inputs\n", tries);
  return 0;
}
#endif
