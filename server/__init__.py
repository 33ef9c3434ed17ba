"""The daemon: scheduling, gRPC, REST and configuration."""
