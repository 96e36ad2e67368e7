"""Advantages, importance weights, KL estimators and losses: pure tensor functions.

Nothing else of this project is imported here but the form of settings and of figures. A new loss is a file in
`losses/`, or anywhere else: `update.objective: mypackage.mymodule:MyLoss`.
"""
