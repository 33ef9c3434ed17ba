"""kaas: kernel-as-a-service for Huawei Ascend NPUs."""
