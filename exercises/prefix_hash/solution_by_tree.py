"""The chains make a tree: each node has the blocks with its content, and a child for each block that may follow."""


class Node:
    def __init__(self) -> None:
        self.children: dict[tuple[int, ...], Node] = {}
        self.block_ids: list[int] = []


class PrefixCache:
    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.root = Node()
        self.nodes: dict[int, Node] = {}

    def chunks(self, token_ids: list[int]) -> list[tuple[int, ...]]:
        return list(zip(*[iter(token_ids)] * self.block_size, strict=False))  # what is left over is no full block

    def cache_blocks(self, token_ids: list[int], block_ids: list[int]) -> None:
        node = self.root
        for chunk, block_id in zip(self.chunks(token_ids), block_ids, strict=False):
            node = node.children.setdefault(chunk, Node())
            node.block_ids.append(block_id)
            self.nodes[block_id] = node

    def get_computed_blocks(self, token_ids: list[int]) -> list[int]:
        node = self.root
        hit = []
        for chunk in self.chunks(token_ids[:-1]):
            node = node.children.get(chunk, Node())
            if not node.block_ids:
                break
            hit.append(node.block_ids[0])
        return hit

    def evict(self, block_id: int) -> None:
        if block_id in self.nodes:
            self.nodes.pop(block_id).block_ids.remove(block_id)
