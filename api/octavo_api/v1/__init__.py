"""Wire messages, generated from the .proto files in this folder by tools/protoc.sh."""
