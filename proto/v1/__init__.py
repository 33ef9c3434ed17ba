"""Generated stubs of kernel_service.proto; regenerate with scripts/proto."""
