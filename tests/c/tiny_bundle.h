/* tiny_bundle.h - writes a bundle around the tiny graph, with a manifest whose digest is right. */
#ifndef SPECC_TINY_BUNDLE_H
#define SPECC_TINY_BUNDLE_H
#include "core/io/sha256.h"
#include "tiny_graph.h"

static char folder[] = "/tmp/specc-test-XXXXXX";

static char *at(const char *name) {
  static char paths[4][256];
  static int turn;
  char *path = paths[turn++ % 4];
  snprintf(path, 256, "%s/%s", folder, name);
  return path;
}

static char *read_text(const char *path, size_t *n) {
  static char text[1 << 18];
  FILE *f = fopen(path, "rb");
  *n = f ? fread(text, 1, sizeof text - 1, f) : 0;
  text[*n] = 0;
  if (f) fclose(f);
  return text;
}

static void hash(const void *data, size_t n, char hex[65]) {
  specc_sha256 h;
  specc_sha256_begin(&h);
  specc_sha256_add(&h, data, n);
  specc_sha256_end(&h, hex);
}

static void write_table(int n) {
  unsigned char table[16 + 5 * VOCAB] = "SPCB\1";
  table[8] = (unsigned char)n;
  for (int i = 0; i <= n; i++) table[12 + 4 * i] = (unsigned char)i;
  for (int i = 0; i < n; i++) table[16 + 4 * n + i] = (unsigned char)('0' + i);
  write_bytes(at("id_bytes.bin"), table, (size_t)(16 + 5 * n));
}

static void describe_files(char *out, size_t n_out) {
  static const char *const names[] = {"target.onnx", "target.onnx.data", "id_bytes.bin"};
  for (int i = 0; i < 3; i++) {
    char hex[65];
    size_t n, used = strlen(out);
    const char *data = read_text(at(names[i]), &n);
    hash(data, n, hex);
    snprintf(out + used, n_out - used, "%s{\"path\": \"%s\", \"bytes\": %zu, \"sha256\": \"%s\"}",
        i ? ",\n  " : "", names[i], n, hex);
  }
}

#define ZEROS "0000000000000000000000000000000000000000000000000000000000000000"
#define ENGINE                                                                                               \
  "{\"file\": \"target.onnx\", \"backend\": \"ort\", \"sha256\": \"" ZEROS                                   \
  "\", \"vocab\": 50, \"layers\": 2, \"kv_heads\": 2,"                                                       \
  " \"head_dim\": 16, \"capacity\": 80, \"widths\": [1, 2, 3, 5, 16]}"

/* The manifest with `from` replaced by `to`, under a right digest. */
static void write_manifest(const char *from, const char *to) {
  static char text[8192], changed[3 * 8192], files[1024];
  char hex[65];
  files[0] = 0;
  describe_files(files, sizeof files);
  snprintf(text, sizeof text,
      "{\n \"digest\": \"" ZEROS "\",\n \"format\": 1,\n \"name\": \"tiny\",\n \"files\": [%s],\n"
      " \"plan\": {\"k\": 4, \"context\": 64, \"threads\": 1},\n \"engines\": {\"target\": " ENGINE
      ", \"draft\": " ENGINE "},\n"
      " \"draft\": {\"kind\": \"ngram\", \"min_match\": 2, \"max_match\": 4},\n"
      " \"tokenizer\": {\"ids\": 48, \"bytes\": \"id_bytes.bin\", \"strip_leading_space\": true, \"eos\": "
      "[2, 3], \"bos\": null},\n"
      " \"lint\": {\"passed\": true, \"findings\": []}\n}\n",
      files);
  char *found = from ? strstr(text, from) : text;
  if (!found) abort();
  snprintf(changed, sizeof changed, "%.*s%s%s", (int)(found - text), text, from ? to : "",
      found + (from ? strlen(from) : 0));
  hash(changed, strlen(changed), hex);
  char *digest = strstr(changed, ZEROS);
  if (digest) memcpy(digest, hex, 64);
  write_bytes(at("manifest.json"), changed, strlen(changed));
}

#endif
