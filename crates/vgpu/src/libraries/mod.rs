//! cuBLAS, cuBLASLt, NCCL, cuFFT, cuSOLVER, cuSPARSE, cuRAND, CUPTI: the calls whose answers matter.
