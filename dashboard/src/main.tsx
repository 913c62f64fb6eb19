import { render } from 'preact'
import { startKeys } from './keys.ts'
import { startStream } from './live.ts'
import { startRouter } from './router.ts'
import { Shell } from './shell.tsx'
import { startTheme } from './theme.ts'

startTheme()
startRouter()
startKeys()
startStream()
const root = document.getElementById('app')
if (root !== null) render(<Shell />, root)
