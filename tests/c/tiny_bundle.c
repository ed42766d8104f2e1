/* tiny_bundle.c - writes the tiny bundle into a new folder and prints its path; for tests that start
 * programs. */
#include "tiny_bundle.h"
#include <unistd.h>

int main(void) {
  if (!mkdtemp(folder)) return 1;
  weights *w = make_weights();
  write_graph(at("target.onnx"), w, (variant){0});
  free(w);
  write_table(48);
  write_manifest(NULL, NULL);
  puts(folder);
  return 0;
}
