"""Django classes that take type parameters in stubs, but not at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.core import paginator

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
    ModelForm = forms.ModelForm[Any]
    Paginator = paginator.Paginator[Any]
else:
    ModelAdmin = admin.ModelAdmin
    ModelForm = forms.ModelForm
    Paginator = paginator.Paginator
