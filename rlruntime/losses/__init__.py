"""Returns and losses: pure functions of tensors that check rank, dtype and shape.

Holds no modules, no state and no configuration, and imports torch alone. Each loss returns its value together with
its closed-form gradient with respect to what the network put out: a minibatch of a few hundred rows spends more time
in the dozens of small operations of a loss and their automatic derivatives than in the network, and the closed form
is a handful.
"""
