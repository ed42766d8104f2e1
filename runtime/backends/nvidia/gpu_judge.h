/* gpu_judge.h - the row kernels on a GPU: specc_judge.fatbin loaded, buffers laid out once, a round judged
 * where its logits lie. */
#ifndef SPECC_GPU_JUDGE_H
#define SPECC_GPU_JUDGE_H
#include "abi/cuda_driver.h"
#include "specc_extend.h"
#ifdef __cplusplus
extern "C" {
#endif

typedef struct gpu_kernels {
  cuda_module module;
  cuda_function judge;
} gpu_kernels;
typedef struct gpu_judge gpu_judge;

/* The GPU's context is entered by the caller. path NULL: specc_judge.fatbin beside this library. False, and
 * nothing loaded: no such file, or none of its code is for this GPU. */
int gpu_kernels_load(gpu_kernels *k, const cuda_gpu *gpu, const char *path);
void gpu_kernels_free(gpu_kernels *k, const cuda_gpu *gpu);
/* Rows of up to `vocab` ids, histories of up to `longest`. */
int gpu_judge_create(gpu_judge **out, const cuda_gpu *gpu, cuda_stream stream, int32_t vocab, int32_t longest,
    int32_t most_rows);
void gpu_judge_free(gpu_judge *g);
/* logits [rows][vocab] on the device, written by work queued in the stream; waits for the answer. One-hot
 * proposals only. */
int gpu_judge_run(gpu_judge *g, const gpu_kernels *k, const specc_round *j, cuda_address logits,
    int32_t *accepted, int32_t *token);

#ifdef __cplusplus
}
#endif
#endif
